"""Where do the nodes sit?"""
