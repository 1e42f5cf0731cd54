"""Is this cluster set up right?"""
