"""The network of sandboxes that build: a proxy to the hosts that a policy names.

Such a sandbox has no interface but loopback. In its network namespace the node opens one
listening socket and hands it to a process of its own, the proxy, which knows no secret, has no
rights, and serves HTTP there: it looks names up and connects on the host's side, to the hosts
of the policy only. TLS goes through unopened; that a tunnel's first record names the host it
was opened to is looked at.

`policy`, `targets` and `clienthello` decide and parse; `upstreams`, `requests`, `tunnels` and
`serving` are the proxy's process; `discovery`, `outfit`, `doors`, `proxylink` and `network` are
the node's side.
"""
