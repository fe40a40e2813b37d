"""``tpu_compile.bisect``: the first place where compiled code departs from eager torch."""
