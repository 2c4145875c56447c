"""Clips and their captions: MSVD, MSR-VTT, COCO, Flickr8k, or a folder of one's own."""
