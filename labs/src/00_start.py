# ruff: noqa: B018, E402, F821
# %% [markdown]
# # Lab 00 · Your first requests
#
# A language model writes one token after the other, and for each of them it needs to look back at all the earlier
# ones. What it remembers of them fills memory, and an **engine** serves many people from the same memory at once. In
# this lab you watch a real engine do that, with a real model, on your machine.
#
# In 20 to 30 minutes you will be able to say
#
# - what the **KV cache** is, and why it is cut into **blocks**;
# - how two requests can read the same block, when a request takes a new one, and where its blocks go at the end;
# - what happens when no block is left;
# - why the second turn of a conversation starts with most of its work done.
#
# Run the cells from top to bottom with Shift+Enter. Nothing can break, and you can run any cell again. Sections 3 to 6
# are one run; to play all of it once more, begin with section 2.

# %% [markdown]
# ## 1 · Look before you run
#
# This cell shows a recording of the run that you will do yourself in a moment; no model is loaded for it. Press
# **Play**, or go on event by event with the arrow beside it, or drag the bar. Read the sentence above the picture, and
# don't try to understand all of it yet.

# %%
from nanovllm_edu import Trace, replay
from nanovllm_edu.exercises import data, exercise, progress

replay(Trace.load(data("00_start")), panels=["pool", "tables", "queue"])

# %% [markdown]
# What you see, from the bottom up:
#
# - A **token** is a piece of text, about as long as a short word. The model reads and writes tokens.
# - For each token the model computes keys and values (K and V), which all later tokens need. The place where they are
#   kept is the **KV cache**. A token that is in it never has to be computed again.
# - The cache is cut into **blocks** of the same size. Each square in the pool is one block: a place for a few tokens.
# - A request's **block table** is the list of its blocks, in the order of its text. Its **logical block** 0 holds the
#   beginning of the text; `#5` is a place in the pool. The two have nothing to do with each other, and the table
#   leads from one to the other.
# - The **free queue** holds the blocks that nobody uses now. The one at its head is taken next.

# %% [markdown]
# ## 2 · Start the engine
#
# The next cell loads the model (135 million parameters; the very first time takes longer) and gives it a tiny pool:
# 16 blocks of 16 tokens. Real engines have thousands of blocks. A small pool shows what happens when it gets tight.

# %% tags=["setup"]
from nanovllm_edu import LLM, SamplingParams, record, watch

if "llm" in globals():
    llm.close()  # you ran this cell before: give the old engine's memory back first
llm = LLM(dtype="float32", kvcache_block_size=16, num_kvcache_blocks=16)

greedy = SamplingParams(temperature=0, max_tokens=64)  # always the most probable token: the same run on every machine
info = llm.model_info
print(f"{info['name']}: one block of {info['block_size']} tokens takes {info['bytes_per_block'] / 2**10:.0f} KiB, "
      f"the pool of {info['num_blocks']} blocks {info['num_blocks'] * info['bytes_per_block'] / 2**20:.1f} MiB")

# %% [markdown]
# Three people are going to ask something. All three requests begin with the same **system prompt**, the instructions
# that a service puts in front of every question. The next cell writes the prompts and shows the first one as the
# engine sees it: in tokens, 16 to a block.

# %% tags=["setup"]
system = ("You are a friendly guide for curious people. Answer in two or three short sentences, "
          "with plain words and one example from daily life.")
questions = ["Why is the sky blue?", "How do birds find their way?", "Why do leaves turn red in autumn?",
             "What makes the sea salty?"]


def tokens_of(question):
    return llm.tokenizer.apply_chat_template([{"role": "system", "content": system},
                                              {"role": "user", "content": question}])


prompts = [tokens_of(question) for question in questions]
for i in range(0, len(prompts[0]), 16):
    part = prompts[0][i:i + 16]
    print(f"block {i // 16}, {len(part):2} of 16 tokens: {llm.tokenizer.decode(part, skip_special_tokens=False)!r}")

# %% [markdown]
# ## 3 · One request, one step at a time
#
# An engine works in **steps**. The first step of a request is **prefill**: all tokens of its prompt go through the
# model at once. Every later step is **decode**: the newest token goes through the model, and one more comes out.
#
# *Predict*: the last block above has room for one more token. In which step will request A need its fourth block:
# 1, 2 or 3? Put your guess into the next cell.

# %%
my_guess = "none yet"

# %% [markdown]
# Now three steps, recorded. Go through the picture event by event and find the moment when A takes the block.

# %% tags=["run"]
with record(llm) as first_steps:
    llm.add_request(prompts[0], greedy)
    for _ in range(3):
        llm.step()

replay(first_steps, panels=["tables", "pool"])

# %% [markdown]
# The engine reports every change as an event, and every event has a sentence. This cell picks the ones about taking a
# block out of the recording. The **ref_count** in them says how many block tables a block is in.

# %%
from nanovllm_edu.engine import events
from nanovllm_edu.render import sentence_text, seq_name


def tell(trace, *kinds):
    """Print the sentences of these kinds of events, with the step they belong to."""
    for frame in trace.frames:
        if isinstance(frame.event, kinds):
            print(f"step {frame.step:2}  {sentence_text(frame.event, trace.vocab)}")


tell(first_steps, events.BlockTaken)
last = [frame for frame in first_steps.frames if isinstance(frame.event, events.BlockTaken)][-1]
length = len(last.state["seqs"][str(last.event.seq_id)]["token_ids"])
print(f"\nYour guess: step {my_guess}. It was step {last.step}. "
      f"{seq_name(last.event.seq_id)} had {length} tokens then, and {length} % 16 == {length % 16}.")

# %% [markdown]
# Prefill took as many blocks as the prompt needs, and no more. Step 1 also produced the first new token, which filled
# the last place of the last block; its K and V were computed in step 2, and step 2 produced the token after it. That
# one is the first token of a new block, so step 3 had to take one.
#
# This is the rule: when the length leaves a remainder of 1 after division by the block size, the newest token opens a
# block. Memory is taken when it is needed, never in advance, so a request wastes at most the rest of its last block.

# %% [markdown]
# ## 4 · Two more requests, and what they share
#
# While A keeps running, B and C arrive. Their prompts begin with the same tokens as A's: this cell counts how many.

# %%
same = 0
while len({prompt[same] for prompt in prompts[:3]}) == 1:
    same += 1
lengths = ", ".join(f"{seq_name(i)} {len(prompt)}" for i, prompt in enumerate(prompts[:3]))
print(f"Tokens in the prompts: {lengths}. The first {same} are the same in all three.")

# %% [markdown]
# *Predict*: how many tokens of B's prompt must go through the model? All of them, those that differ, or a number in
# between? Write your guess here.

# %%
my_guess = "none yet"

# %% [markdown]
# One step for both of them. In the picture, watch the blocks that A holds already: the number behind × is the block's
# ref_count.

# %% tags=["run"]
with record(llm) as sharing:
    llm.add_request(prompts[1], greedy)
    llm.add_request(prompts[2], greedy)
    llm.step()

replay(sharing, panels=["tables", "pool", "hashes"])

# %% [markdown]
# A full block is registered in a map, under a **hash**: a fingerprint of all tokens from the start of the prompt to the
# end of that block. A new request looks its blocks up there, one after the other. These are the sentences about that,
# in the order in which it happened. (**Logits** are the model's scores for what the next token could be.)

# %%
tell(sharing, events.PrefixLookup, events.BlockShared, events.RequestScheduled)
computed = next(event for event in sharing.events if isinstance(event, events.TokensComputed))
print(f"\nYour guess: {my_guess}. {seq_name(computed.seq_id)} has {len(prompts[1])} prompt tokens, "
      f"and {computed.num_scheduled_tokens_before} of them went through the model.")

# %% [markdown]
# B's first blocks have the fingerprints of A's, so B reads A's blocks: nothing is copied and nothing is computed again.
# Sharing works in whole blocks, from the start of the prompt, until the first block that differs. And the last block of
# a prompt is always computed, for the model needs a token to go on from.
#
# That A was there first matters: a block can be found only after the step that filled it. To see it, let all three
# arrive at once. The engine's ledger, the part that keeps account of blocks, runs without a model too; here it gets the
# same prompts.

# %%
from nanovllm_edu.exercises.standin import Bench

bench = Bench(num_blocks=16, block_size=16)
for i in range(3):
    bench.add(prompts[i], seq_id=i)
with record(bench.scheduler) as together:
    bench.step()


def count(trace, kind):
    return sum(isinstance(event, kind) for event in trace.events)


print(f"All at once: {count(together, events.BlockShared)} blocks shared, {count(together, events.BlockTaken)} taken.")
print(f"A first, then B and C: {count(sharing, events.BlockShared)} shared, "
      f"{count(first_steps, events.BlockTaken) + count(sharing, events.BlockTaken)} taken.")

# %% [markdown]
# ## 5 · When no block is left
#
# Three requests now grow, and all blocks belong to one pool. The next cell runs until one of them has to go back to
# the waiting queue. That is called **preemption**.
#
# *Predict*: who has to give way, the request that came first, the longest one, or the newest one? And what becomes of
# the tokens it has produced?

# %% tags=["run"]
with record(llm) as squeeze:
    while llm.scheduler.running and not llm.scheduler.waiting:
        llm.step()

replay(squeeze, panels=["tables", "queue", "pool"])

# %% [markdown]
# Drag the bar to its end and step back through the last events; the red mark above the bar is the preemption. Here is
# its sentence, among those of the blocks that changed hands before and after it. `num_cached_tokens` counts the tokens
# of a request whose K and V are in its blocks.

# %%
tell(squeeze, events.BlockTaken, events.RequestPreempted, events.TableCleared)
for event in squeeze.events:
    if isinstance(event, events.RequestPreempted):
        victim = squeeze.frames[-1].state["seqs"][str(event.seq_id)]
        print(f"\n{seq_name(event.seq_id)} still has its {len(victim['token_ids'])} tokens, "
              f"and {victim['num_cached_tokens']} of them count as computed.")

# %% [markdown]
# The newest request gave way, so that those before it are not held up. It keeps its tokens and loses its blocks, and
# with them its K and V. But what lies in these blocks is still there, until somebody else takes them: section 6 will
# show what that is good for.
#
# Now you. This exercise has its own numbers, and it checks at once; a wrong answer costs nothing and tells you what
# misled it. To answer from a cell instead: `exercise("give-way").check("A")`.

# %%
exercise("give-way").widget()

# %% [markdown]
# ## 6 · Given back, and found again
#
# Let all three run to their end. *Predict*: when A finishes, will its blocks return to the queue from the first to the
# last or the other way round? And what is left in them?

# %% tags=["run"]
with record(llm) as finishing:
    while not llm.is_finished():
        llm.step()

for seq_id, output in sorted(llm.outputs.items()):
    print(f"{seq_name(seq_id)} ({output.finish_reason}): {output.text}\n")

# %% [markdown]
# Those were the answers; the model is small, so don't believe everything it says. What the blocks did is in the
# recording: look at the queue while A finishes, and at the moment when the preempted request comes back.

# %%
replay(finishing, panels=["queue", "tables", "pool"])

# %% [markdown]
# Here is what each of them gave back, and how the preempted request began again.

# %%
tell(finishing, events.RequestFinished, events.TableCleared, events.BlockRevived, events.PrefixReused)
for frame in finishing.frames:
    if isinstance(frame.event, events.PrefixReused):
        found = frame.event.num_cached_tokens_after
        length = len(frame.state["seqs"][str(frame.event.seq_id)]["token_ids"])
        print(f"\nOf the {length} tokens of {seq_name(frame.event.seq_id)}, {found} were found in the cache: "
              f"{length - found} had to be computed again.")

# %% [markdown]
# A block goes to the tail of the queue when its ref_count falls to 0, and a table is given back from its last block to
# its first. So the beginning of a text, which others are most likely to share, is overwritten last. And a block in the
# queue keeps its content and its fingerprint: the preempted request found its own blocks again, and lifted them out of
# the middle of the queue.
#
# Try it on a queue of your own: press the blocks in the order in which they will stand in the queue.

# %%
exercise("free-order").widget()

# %% [markdown]
# Now nobody is running, and no block is in use. *Predict*: a fourth person asks, with the same system prompt. Does the
# engine have to compute the system prompt again?

# %% tags=["run"]
with record(llm) as fourth:
    fourth_id = llm.add_request(prompts[3], greedy)
    while not llm.is_finished():
        llm.step()

print(llm.outputs[fourth_id].text)
replay(fourth, panels=["queue", "tables", "hashes"])

# %% [markdown]
# The answer is in the lookups, and in what had to leave the cache to make room.

# %%
tell(fourth, events.PrefixLookup, events.BlockRevived, events.PrefixReused, events.EntryEvicted)

# %% [markdown]
# Free and remembered at the same time: such a block is called **cached**. It costs nothing, for it can be taken at any
# time; then its entry leaves the map of fingerprints, and its content can't be found any more.

# %% [markdown]
# ## 7 · Your own prompt
#
# This is the control room of the running engine, with a place to talk. Type a prompt and press **Submit**: it enters as
# a request and waits. **Step engine** runs one step, **Run** goes on until you press **Pause**. When the answer is
# finished, ask something more, and watch the second turn's lookups: most of its prompt is found.

# %%
room = watch(llm)
room

# %% [markdown]
# You can scrub back while the engine runs, and **Reset** begins a new conversation with an empty cache. The pool holds
# 256 tokens, so after a few turns the conversation no longer fits, and the room says so.
#
# This cell counts what your requests in the room have found in the cache. Run it again after each turn.

# %%
asked = [event for event in room.trace.events if isinstance(event, events.RequestAdded)]
found = {}
for event in room.trace.events:
    if isinstance(event, events.PrefixReused):
        found.setdefault(event.seq_id, event.num_cached_tokens_after)
for event in asked:
    print(f"{seq_name(event.seq_id)}: {len(event.token_ids)} prompt tokens, "
          f"{found.get(event.seq_id, 0)} of them found in the cache")
if not asked:
    print("Nothing yet. Type a prompt in the room above, press Submit and Run, and run this cell again.")

# %% [markdown]
# The same in code, so that you can measure it: a first turn, and a second one that sends all of the first along. The
# room above shows these requests too. Change the questions if you like.

# %%
my_question = "What is the capital of France, and what can I see there?"
my_next_question = "Which of these should I see first?"
short = SamplingParams(temperature=0, max_tokens=32)

talk = [{"role": "user", "content": my_question}]
turn_1 = llm.chat(talk, short)
talk += [{"role": "assistant", "content": turn_1.text}, {"role": "user", "content": my_next_question}]
turn_2 = llm.chat(talk, short)

for name, turn in ("first turn", turn_1), ("second turn", turn_2):
    prompt, answer, cached = len(turn.prompt_token_ids), len(turn.token_ids), turn.num_cached_tokens
    print(f"{name}: prompt of {prompt} tokens, {cached} found in the cache and {prompt - cached} computed; "
          f"answered with {answer} tokens:\n   {turn.text}\n")

# %% [markdown]
# The first prompt is longer than your question, for the model's **chat template** writes a system prompt and marks who
# is speaking.
#
# A model remembers nothing between two turns: the whole conversation is sent again each time. The engine does remember,
# block by block, the answer included, and so it computes only what is new and what lay in a block that was not full.
#
# Work it out for a conversation of your own.

# %%
exercise("second-turn").widget()

# %% [markdown]
# ## 8 · In the real code
#
# You have seen the moves; here are the functions that make them. Files and functions of this project carry the names
# that they have in nano-vllm.
#
# | what you saw | here and in [nano-vllm], `engine/` | in [vLLM], `vllm/v1/core/` |
# |---|---|---|
# | prompt blocks looked up | `block_manager.py`: `can_allocate` | `kv_cache_manager.py`: `get_computed_blocks` |
# | shared, taken, found again | `block_manager.py`: `allocate` | `block_pool.py`: `touch`, `get_new_blocks` |
# | a block at a boundary | `block_manager.py`: `may_append` | `kv_cache_manager.py`: `allocate_slots` |
# | a full block gets its hash | `block_manager.py`: `hash_blocks` | `block_pool.py`: `cache_full_blocks` |
# | given back, last block first | `block_manager.py`: `deallocate` | `block_pool.py`: `free_blocks` |
# | who gives way | `scheduler.py`: `schedule`, `preempt` | `sched/scheduler.py`: `schedule` |
#
# [nano-vllm]: https://github.com/GeeeekExplorer/nano-vllm
# [vLLM]: https://github.com/vllm-project/vllm
#
# Every event knows the line that made it. This cell shows the function behind the last block that was given back.

# %%
import inspect

from nanovllm_edu.engine import BlockManager

event = [event for event in fourth.events if isinstance(event, events.BlockReleased)][-1]
print(f"{event.at.file}, line {event.at.line}, in {event.at.function}\n")
print(inspect.getsource(BlockManager.deallocate))

# %% [markdown]
# ## 9 · What you know now, and what is next
#
# - The KV cache keeps the keys and values of tokens, in blocks of the same size; a block table says where they are.
# - A request takes a block when its newest token opens one. Full blocks with the same beginning are shared.
# - Without a free block the newest request gives way, and computes again what is not in the cache any more.
# - Blocks are given back last first, to the tail of the queue, and can be found until they are taken.
# - So the second turn of a conversation computes little more than what is new.
#
# The question for next time is why there are blocks at all: how much memory is wasted with them, and how much without?
# This last cell shows your exercises and where your progress is kept; `reset_progress()` from the same module begins
# anew.

# %%
progress("00")
