"""Where the reference's own cuts do not go together: the plan agrees with it, the audit says so, no load happens."""

REFERENCE_FAULTS = {
    # Q is cut at whole pairs of heads and gates, the output projection at whole blocks: not the same heads
    ("qwen35", "attention_lockstep"),
    ("qwen35moe", "attention_lockstep"),
    ("qwen3next", "attention_lockstep"),
    # keys and values of linear attention are rounded apart where value heads outnumber key heads
    ("qwen3next", "state_lockstep"),
    # a norm per head is cut at any head, Q and K at whole groups of them
    ("chameleon", "attention_lockstep"),
    ("stablelm", "attention_lockstep"),
    ("talkie", "attention_lockstep"),
}
