"""What is installed where, and who owns it?"""
