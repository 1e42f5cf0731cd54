"""What GPUs does each node offer?"""
