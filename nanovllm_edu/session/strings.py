"""What a session says of its own accord: notices and errors in the view's status strip."""
from __future__ import annotations

NOTHING_TO_DO = "Nothing to do: no request is waiting or running. Submit a prompt first."
NO_SUCH_REQUEST = "Request {seq_id} is not live (any more): there is nothing to abort."
NOT_A_PROMPT = "Type a prompt first: an empty one has no token to continue."
NOT_A_NUMBER = "max_tokens={value!r}: give a whole number of at least 1."
TURN_STILL_RUNS = ("The last answer is still being written, so this prompt is a request of its own; the conversation "
                   "goes on when that answer is finished.")
NEW_CONVERSATION = "All requests are aborted, the prefix cache is empty, and a new conversation begins."
TOO_LONG = " The conversation has become too long: Reset begins a new one."
STEP_FAILED = "The step failed; every request is as it was before it. {error}"
THREAD_FAILED = "The session's thread failed, which is a bug: {error}"
ENGINE_GONE = "The engine is gone: keep it in a variable, as in llm = LLM(...); watch(llm)."
ENGINE_CLOSED = "The engine was closed. What it did can still be looked at."
DETACHED = "This view no longer steers the engine. What it did can still be looked at."
