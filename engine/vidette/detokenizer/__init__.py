"""The detokenizer: token ids to text, a piece at a time.

- `incremental`  pure: one request's bytes to characters
- `detokenizer`  pure: one step message in, one out
- `process`      the AnyIO shell: links to the scheduler and to the front
"""
