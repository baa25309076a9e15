"""Decides how cluster state shall change: (image, request) -> events, or a refusal. Promises: nothing is changed here;
the same image and request give the same events. Never does IO."""
