"""The vocabulary that Sandfleet's services and its SDK share.

Messages, subjects, errors, the lifecycle table and ids are pure data; `bus` and
`store` are the only modules that meet NATS and Redis, and are imported by name
where they are needed so that the SDK stays light.
"""
