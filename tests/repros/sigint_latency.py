"""An interrupt at a random time of a first call is answered within a second, leaves no child process, and the next call
is right."""
# limit: 300

import os
import subprocess
import sys

fuzzer = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fuzz", "fuzz_interrupts.py")
done = subprocess.run([sys.executable, fuzzer, "--count", "25", "--start", "7000"], capture_output=True, text=True)
assert done.returncode == 0, done.stdout + done.stderr
