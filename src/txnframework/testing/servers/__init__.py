"""Real servers for tests, on this machine: started in a second, killed, paused and cut off as the test says."""
