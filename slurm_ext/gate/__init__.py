"""May this node run a job?"""
