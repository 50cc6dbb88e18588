#!/bin/sh
# Keeps a container alive around the service in it: `stay COMMAND [ARGUMENT...]`.
#
# The launcher and all sandboxes end with their container, but not with the service: whatever ends
# that, it starts again and finds them. A signal to the container ends both; so do wrong settings
# (status 2), which another start would not mend.
stopping=
child=
status=0
trap 'stopping=1; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null' TERM INT
while [ -z "$stopping" ] && [ "$status" -ne 2 ]; do
    "$@" &
    child=$!
    [ -z "$stopping" ] || kill -TERM "$child"
    wait "$child"
    status=$?
    # A trapped signal ends a wait early; the child is still to be waited for.
    while kill -0 "$child" 2>/dev/null; do
        wait "$child"
        status=$?
    done
    child=
    [ -n "$stopping" ] || sleep 1
done
exit "$status"
