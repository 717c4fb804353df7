"""What swarmd peers say to each other: messages, envelopes, checks. No I/O, no clock, no keys.

Bytes and times come in, typed values come out. The rules stand in `protocol/spec`; golden bytes for
another implementation stand in `protocol/vectors`.
"""
