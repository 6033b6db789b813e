# Tables 4 and 7 have the same model.
_base_ = './mait_t_400e_in1k.py'
