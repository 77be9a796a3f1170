"""Distillation: a student, a teacher, data and a `[distil]` come in; a distilled student and its record go out.

A student learns from a teacher's logits, hidden states and attention relations (`losses`) in the training loop; `plan`
says what `[head]` and `[distil]` mean in a recipe. It may import `pipeline.train` and what lies below it, and
`vocabulary`, since a trimmed vocabulary decides which tokens can be compared.
"""
