"""List the figures that papers print for the models of this package, by table.

Copied from the papers' tables, apart from `mmattn/analysis/paper_tables.yml`, which has
a row or a reason for each. A line has the name of the row, parameters in millions and
FLOPs in billions; `-` is for what the table leaves out, and `?` for what it prints but
nobody here has read.
"""

IVIT = """
ivit_t 27.5 4.0
ivit_s 41.1 7.8
ivit_b 58.3 13.1
vit_t16_mhsa 5.7 1.3
vit_t16_imhsa 6.1 1.2
vit_s16_mhsa 22.0 4.6
vit_s16_imhsa 23.2 4.5
vit_t8_mhsa 5.7 7.0
vit_t8_imhsa 6.1 4.7
vit_t16_mhsa_448 - 7.1
vit_t16_imhsa_448 - 4.8
vit_s16_mhsa_448 - 22.5
vit_s16_imhsa_448 - 17.9
vit_t16_mhsa_672 - 24.5
vit_t16_imhsa_672 - 10.7
vit_s16_mhsa_672 - 67.6
vit_s16_imhsa_672 - 40.3
vit_t16_mhsa_896 - 62.4
vit_t16_imhsa_896 - 19.0
vit_s16_mhsa_896 - 158.1
vit_s16_imhsa_896 - 71.6
mask_rcnn_ivit_t 46 257
mask_rcnn_ivit_s 60 332
mask_rcnn_ivit_b 77 442
mask_rcnn_pvtv2_b2_quoted 45 309
mask_rcnn_pvtv2_b3_quoted 65 397
mask_rcnn_pvtv2_b5_quoted 102 557
upernet_ivit_t 56 940
upernet_ivit_s 74 1029
upernet_ivit_b 88 1142
vit_t_decomposition_and_interaction - 3.3
vit_t_decomposition - 3.3
vit_t_interaction - 5.8
"""
LISA = """
lisanet_i_self_attention 5.72 1.25
lisanet_i_self_attention_rpe 5.72 1.25
lisanet_i_self_attention_rpe_wide 6.44 1.40
lisanet_i_depthwise 4.49 0.84
lisanet_i_global_filter 4.90 0.82
lisanet_i_global_filter_wide 7.37 1.27
lisanet_i_lambda 5.41 2.41
lisanet_i_convolutional_attention 5.78 1.26
lisanet_i_convolutional_attention_wide 6.49 1.41
lisanet_i_inception_wide 6.36 1.28
lisanet_i_rsa 8.23 5.34
lisanet_i 6.36 1.21
lisanet_i_self_attention_rpes 5.81 1.25
lisanet_i_sa_eq9 5.72 1.25
lisanet_i_sa_eq9_rpes 5.81 1.25
lisanet_i_sa_eq10 5.99 3.92
lisanet_i_sa_eq11 8.09 3.92
lisanet_i_patterns_1 5.76 1.11
lisanet_i_patterns_4 5.88 1.13
lisanet_i_patterns_8 6.04 1.17
lisanet_i_local_3 5.75 1.22
lisanet_i_local_5 5.80 1.45
lisanet_i_local_7 5.88 1.80
lisanet_i_384 7.82 3.62
block_self_attention_7 - 0.0227
block_self_attention_14 - 0.102
block_self_attention_28 - 0.584
block_self_attention_56 - 5.2
block_self_attention_84 - 22.2
block_convolutional_attention_7 - 0.0231
block_convolutional_attention_14 - 0.104
block_convolutional_attention_28 - 0.413
block_convolutional_attention_56 - 1.6
block_convolutional_attention_84 - 3.7
block_lisa_7 - 0.0218
block_lisa_14 - 0.0873
block_lisa_28 - 0.349
block_lisa_56 - 1.4
block_lisa_84 - 3.1
lisanet_s 25 3.9
lisanet_b 51 10.4
hylisanet_s 24 4.5
hylisanet_b 50 11.7
hylisanet_s_in21k 24 4.5
hylisanet_b_in21k 50 11.7
pvt_s_quoted_by_lisa 25 3.8
pvt_l_quoted_by_lisa 61 9.8
mask_rcnn_lisanet_s 43 258
mask_rcnn_hylisanet_s 42 265
mask_rcnn_pvt_s_quoted 44 245
sem_fpn_lisanet_s 27 176
sem_fpn_hylisanet_s 26 184
sem_fpn_pvt_s_quoted 28 161
video_hylisanet_s - 165
video_hylisanet_b - 428
video_self_attention 5.82 7.36
video_self_attention_rpe 5.87 7.36
video_lisa 8.37 5.16
"""
MAIT = """
mait_xs 24.5 5.3
mait_s 43.3 9.1
hmait_t 29 4.5
hmait_s 50 8.9
mait_xt_distilled 6.4 1.5
mait_xt 6.3 1.5
mait_t 11 2.5
masked_cait_xxs24 12 2.5
masked_cait_s24 46.9 9.4
pvt_t_quoted_by_mait 13.2 1.9
pvt_s_quoted_by_mait 24.5 3.8
pvt_m_quoted_by_mait 44.2 6.7
hmait_t_block_dense - 2.23
hmait_t_block - 0.35
"""
PVT = """
pvt_t 13.2 1.9
pvt_s 24.5 3.8
pvt_m 44.2 6.7
pvt_l 61.4 9.8
retinanet_pvt_t 23.0 -
retinanet_pvt_m 53.9 -
retinanet_pvt_l 71.1 -
mask_rcnn_pvt_t 32.9 -
mask_rcnn_pvt_s 44.1 -
mask_rcnn_pvt_m 63.9 -
mask_rcnn_pvt_l 81.0 -
sem_fpn_pvt_t 17.0 33.2
sem_fpn_pvt_s 28.2 44.5
sem_fpn_pvt_m 48.0 61.0
sem_fpn_pvt_l 65.1 79.6
"""
PVT_V2 = """
pvtv2_b0 3.4 0.6
pvtv2_b1 13.1 2.1
pvtv2_b2_li 22.6 3.9
pvtv2_b2 25.4 4.0
pvtv2_b3 45.2 6.9
pvtv2_b4 62.6 10.1
pvtv2_b5 82.0 11.8
retinanet_pvt_s 34.2 285.8
retinanet_pvtv2_b0 13.0 -
retinanet_pvtv2_b1 23.8 -
retinanet_pvtv2_b2_li 32.3 227.4
retinanet_pvtv2_b2 35.1 290.7
retinanet_pvtv2_b3 55.0 -
retinanet_pvtv2_b4 72.3 -
retinanet_pvtv2_b5 91.7 -
mask_rcnn_pvtv2_b0 23.5 -
mask_rcnn_pvtv2_b1 33.7 -
mask_rcnn_pvtv2_b2_li 42.2 -
mask_rcnn_pvtv2_b2 45.0 -
mask_rcnn_pvtv2_b3 64.9 -
mask_rcnn_pvtv2_b4 82.2 -
mask_rcnn_pvtv2_b5 101.6 -
cascade_mask_rcnn_pvtv2_b2_li ? ?
cascade_mask_rcnn_pvtv2_b2 ? ?
atss_pvtv2_b2_li ? ?
atss_pvtv2_b2 ? ?
gfl_pvtv2_b2_li ? ?
gfl_pvtv2_b2 ? ?
sparse_rcnn_pvtv2_b2_li ? ?
sparse_rcnn_pvtv2_b2 ? ?
sem_fpn_pvtv2_b0 7.6 25.0
sem_fpn_pvtv2_b1 17.8 34.2
sem_fpn_pvtv2_b2_li 26.3 41.0
sem_fpn_pvtv2_b2 29.1 45.8
sem_fpn_pvtv2_b3 49.0 62.4
sem_fpn_pvtv2_b4 66.3 81.3
sem_fpn_pvtv2_b5 85.7 91.1
"""
DAT = """
dat_t 29 4.6
dat_s 50 9.0
dat_b 88 15.8
dat_b_384 88 49.8
retinanet_dat_t ? ?
retinanet_dat_s ? ?
mask_rcnn_dat_t 48 272
mask_rcnn_dat_s ? ?
cascade_mask_rcnn_dat_t 86 -
cascade_mask_rcnn_dat_t_flops - ?
cascade_mask_rcnn_dat_s 107 857
cascade_mask_rcnn_dat_b ? ?
sem_fpn_dat_t 32 198
sem_fpn_dat_s 53 320
sem_fpn_dat_b 92 481
upernet_dat_t 60 957
upernet_dat_s 81 1079
upernet_dat_b 121 1212
"""
DAT_PLUS_PLUS = """
datpp_t 24 4.3
datpp_s 53 9.4
datpp_b 93 16.6
datpp_b_384 - 49.7
datpp_b_384_params ? -
retinanet_datpp_t ? ?
retinanet_datpp_s ? ?
mask_rcnn_datpp_t ? ?
mask_rcnn_datpp_s ? ?
cascade_mask_rcnn_datpp_t ? ?
cascade_mask_rcnn_datpp_s ? ?
cascade_mask_rcnn_datpp_b ? ?
sem_fpn_datpp_t ? ?
sem_fpn_datpp_s ? ?
sem_fpn_datpp_b ? ?
upernet_datpp_t ? ?
upernet_datpp_s ? ?
upernet_datpp_b ? ?
"""
DEFORMABLE_DETR = """
deformable_detr_r50_single_scale 34 78
deformable_detr_r50_single_scale_dc5 34 128
deformable_detr_r50 40 173
deformable_detr_r50_refine 41 173
deformable_detr_r50_two_stage 41 173
"""
# Other readings of a network of the table, held to the figures of that network.
READINGS = {
    'mait_xt_without_layer_scale': 'mait_xt',
    'mait_xs_without_layer_scale': 'mait_xs',
    'mait_s_without_layer_scale': 'mait_s',
    **{
        f'hmait_{size}_position_{position}': f'hmait_{size}'
        for size in 'ts'
        for position in ('none', 'absolute', 'full')
    },
}
PAPERS = {
    'arXiv:2402.17507v1': IVIT,
    'arXiv:2211.16289': LISA,
    'arXiv:2207.03006': MAIT,
    'arXiv:2102.12122': PVT,
    'arXiv:2106.13797': PVT_V2,
    'arXiv:2201.00520': DAT,
    'arXiv:2309.01430': DAT_PLUS_PLUS,
    'arXiv:2010.04159': DEFORMABLE_DETR,
}
KINDS = 'params', 'flops'


def printed(paper: str) -> dict[tuple[str, str], str]:
    """Return a paper's figures as printed, by row and kind; '?' for unread ones."""
    figures = {}
    for line in PAPERS[paper].split('\n')[1:-1]:
        name, *values = line.split()
        for kind, value in zip(KINDS, values, strict=True):
            if value != '-':
                figures[name, kind] = value
    return figures
