"""Where is the checkpoint, and is it whole?"""
