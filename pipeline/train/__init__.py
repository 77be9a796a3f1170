"""Training: fine-tuning a student on labelled data.

One idea a file:

| file | what |
|---|---|
| `own.py` | a user's own files as a data set |
| `checks.py` | what is wrong with the data, before anything heavy is imported |
| `examples.py` | labelled rows as ids and targets |
| `batches.py` | which rows make an update, and the padded tensors of them |
| `model.py` | the student with its head, new where the checkpoint has none |
| `objectives.py` | the losses, one for each kind of output |
| `loop.py` | updates, dev metric, progress |
| `checkpoints.py` | going on after a stop as if there had been none |
| `evaluation.py` | the dev metric |
| `record.py` | `training.json` |
| `outside.py` | what runs outside the line share |

`accelerate launch -m pipeline.train RECIPE --out FOLDER` trains with many processes, outside the line.
"""
