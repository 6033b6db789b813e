# The model of Table 7 is that of Table 4.
_base_ = './mait_t_400e_in1k.py'
