"""What the HTTP services share: who may call, what a request may take, how errors are answered."""
