"""Everything that touches a running torch model: hooks, copies, and running a user's code safely."""
