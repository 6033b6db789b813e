_base_ = '../../configs/classification/lisanet_i_150e_in1k.py'
custom_imports = dict(imports=['projects.lisa_ablations.network'])
# Another operator: --cfg-options model.backbone.mixer=rsa
model = dict(backbone=dict(type='AblationLiSANet', mixer='self_attention'))
