"""Can these nodes train together?"""
