"""What demo, tests and benchmarks share: the server as a process, its cgroup, a light client, the oracle."""
