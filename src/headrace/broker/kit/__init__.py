"""Small tools of the event loop and of threads that every room uses."""
