"""Tools for agents: a cluster over the Model Context Protocol, by the official SDK.

Promises:
- It reads. It changes something only where it was started with `--allow`, and only by two calls: a plan, and an
  approval with the plan's hash. The plan is made again before that, and has to be the same.
- Each call is made with the rights of one principal, whose credentials the process was given. It is logged in one
  line.
- An answer is small, typed, and says what may be asked next. Texts of others are marked as data.
- A failure is one sentence, with what to do.
"""
