_base_ = './ivit_t_3x_coco.py'
model = dict(backbone=dict(arch='small', drop_path_rate=0.3))
