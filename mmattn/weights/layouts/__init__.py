"""Mappings between the state dicts of several models or layouts, and what they share.

`convert_state_dict` of a single model stands beside that model.
"""
