"""A page in the browser that predicts, looks inside models and compares them.

`mmattn web` starts it. The page requires the extra `web`; the modules below it do not.
"""
