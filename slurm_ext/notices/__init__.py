"""Who is told, of what, and did it arrive?"""
