"""A job died: why, and what now?"""
