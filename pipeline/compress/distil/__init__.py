"""Distillation: a student learns from a teacher's outputs, states and relations.

One idea a file:

| file | what |
|---|---|
| `losses.py` | the losses as formulas |
| `terms.py` | the table of losses: what each compares, what it is counted by, what it needs |
| `section.py` | a recipe's settings |
| `presets.py` | the published combinations |
| `material.py` | what is learnt on: plain text, a data set, labelled files of one's own |
| `checks.py` | what cannot go well, before anything heavy is imported |
| `start_checks.py` | the same for the student to begin with |
| `starts.py` | the student to begin with |
| `reshaping.py` | another architecture for the same weights: DistilBERT, ALBERT |
| `seen.py` | what a model shows: logits, states, queries, keys, values |
| `rows.py` | texts as ids, once for each tokenizer |
| `augment.py` | copies of rows with words replaced |
| `masked.py` | blocks of text, dynamic masking, swapped segments; the masked-LM head |
| `batching.py` | padded tensors of both sides |
| `models.py` | student and teacher, in the class of the head that is compared |
| `values.py` | from what two models show to the losses |
| `cache.py` | a teacher's outputs, computed once |
| `goal.py` | what the training loop is handed |
| `stage.py` | the stage, and its record |
"""
