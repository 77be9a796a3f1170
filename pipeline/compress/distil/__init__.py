"""Distillation: a student, a teacher, data and a `[distil]` come in; a distilled student and its record go out.

A student learns from a teacher's logits, hidden states and attention relations (`losses`) in the training loop.
It may import `pipeline.train` and what lies below it, and no other stage of compression.
"""
