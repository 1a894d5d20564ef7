"""The exercises of lab 00: who gives way, the free queue after a finish, and the second turn of a conversation."""

from __future__ import annotations

from random import Random
from typing import Any

from ..engine.events import RequestPreempted
from ..render import seq_name
from .exercise import Chip, Exercise, Misconception, Params, Question, Row
from .kinds import Choice, Numeric, Order
from .standin import Bench

# --- give-way: which running request is preempted ------------------------------------------------------------------


def draw_give_way(rng: Random) -> Params:
    size, number = 4, rng.choice([4, 5])
    needy, longest = rng.sample(range(1, number - 1), 2)  # neither the oldest nor the newest
    lengths = []
    for i in range(number):
        blocks = rng.choice([4, 5]) if i == longest else rng.choice([1, 2, 3])
        lengths.append(blocks * size if i == needy else blocks * size - rng.choice([2, 3]))
    return {"block_size": size, "lengths": lengths, "seq_ids": rng.sample(range(8), number)}


def play_give_way(params: Params) -> tuple[Bench, list[Any]]:
    """Every block is taken, and the request whose last block is full is about to need one more."""
    size = params["block_size"]
    bench = Bench(sum(-(-length // size) for length in params["lengths"]), size)
    seqs = [bench.add(bench.tokens(length), seq_id) for length, seq_id in zip(params["lengths"], params["seq_ids"],
                                                                              strict=True)]
    bench.step()
    return bench, seqs


def needy(params: Params) -> int:
    """The one whose newest token opens a new block."""
    return next(i for i, length in enumerate(params["lengths"]) if length % params["block_size"] == 0)


def ask_give_way(params: Params) -> Question:
    bench, seqs = play_give_way(params)
    names = [seq_name(seq.seq_id) for seq in seqs]
    who = seqs[needy(params)]
    rows = [Row(f"{name}, {len(seq)} tokens", tuple(Chip(f"#{i}") for i in seq.block_table))
            for name, seq in zip(names, seqs, strict=True)]
    return Question(
        (f"{len(seqs)} requests are running; they began in the order {', '.join(names)}. A block holds "
         f"{params['block_size']} tokens. The free queue is empty. {seq_name(who.seq_id)}'s newest token is the first "
         "one of a new block, so it needs a block now.",
         "Who goes back to the waiting queue and gives up their blocks?"),
        (*rows, Row("free queue", tuple(Chip(f"#{i}") for i in bench.queue))),
        options=(*((name, f"request {name}") for name in sorted(names)),
                 ("nobody", "nobody: it waits until a block comes free"), ("all", "all of them: the pool is emptied")))


def answer_give_way(params: Params) -> str:
    bench, _ = play_give_way(params)
    preempted: list[int] = []

    class Watch:
        def on_event(self, event: Any) -> None:
            if isinstance(event, RequestPreempted):
                preempted.append(event.seq_id)

    bench.scheduler.emit.attach(Watch())
    bench.step()
    return seq_name(preempted[0])


def _name(params: Params, i: int) -> str:
    return seq_name(params["seq_ids"][i])


def explain_give_way(params: Params) -> str:
    number = len(play_give_way(params)[1][-1].block_table)
    return (f"The request that began last is {answer_give_way(params)}. It has been served for the shortest time, and "
            f"the others are not held up by it: its {_blocks(number)} to the free queue, and it waits at the head of "
            "the waiting queue for another turn.")


def _blocks(number: int) -> str:
    return "one block goes back" if number == 1 else f"{number} blocks go back"


GIVE_WAY = Exercise(
    id="give-way", lab="00", title="Who gives way?", kind=Choice(),
    draw=draw_give_way, ask=ask_give_way, answer=answer_give_way, explain=explain_give_way,
    misconceptions=(
        Misconception("the-one-in-need", lambda p: [_name(p, needy(p))],
                      "You chose the request that needs the block. The engine lets it go on and looks for someone "
                      "else's blocks first; it gives way itself only if nobody is left behind it."),
        Misconception("oldest-first", lambda p: [_name(p, 0)],
                      "You chose the request that began first, as a queue at a counter would serve it. Here it is the "
                      "other way round: who began first keeps running."),
        Misconception("most-blocks", lambda p: [_name(p, max(range(len(p["lengths"])), key=p["lengths"].__getitem__))],
                      "You chose the request with the most blocks, which would free the most memory. The engine does "
                      "not look at sizes; it looks at who began when."),
        Misconception("it-waits", lambda p: ["nobody"],
                      "You let the request wait. But all the others hold on to their blocks while they run, so nothing "
                      "says that one would come free. The engine makes room at once."),
        Misconception("start-anew", lambda p: ["all"],
                      "You emptied the whole pool. The engine takes one request after the other, and stops as soon as "
                      "there is room."),
    ),
    hints=("Look at the order in which the requests began, not at their sizes.",
           "The engine wants to disturb as little finished work as it can: whom has it served for the shortest time?",
           "In the scheduler, new running requests join at the end of a list, and the one to preempt is taken from "
           "that same end."),
    checked="which request is preempted first", not_checked="why, and what becomes of it afterwards",
    tags=("preemption",))

# --- free-order: the free queue after a request finishes -----------------------------------------------------------


def draw_free_order(rng: Random) -> Params:
    shared, own, other = rng.choice([1, 2]), rng.choice([2, 3]), rng.choice([1, 2])
    num_blocks = shared + own + other + rng.choice([2, 3])
    return {"block_size": 4, "num_blocks": num_blocks, "shuffle": rng.sample(range(num_blocks), num_blocks),
            "shared": shared, "own": own, "other": other, "last": rng.choice([1, 2]), "leaves": rng.choice([0, 1])}


def play_free_order(params: Params) -> tuple[Bench, Any, Any]:
    """A and B share their first blocks, and the free queue is in no tidy order. Returns bench, leaver, stayer."""
    size = params["block_size"]
    bench = Bench(params["num_blocks"], size)
    early = [bench.add(bench.tokens(2), 100 + i) for i in range(params["num_blocks"])]  # one block each
    bench.step()
    for i in params["shuffle"]:
        bench.finish(early[i])
    prefix = bench.tokens(params["shared"] * size)

    def length(blocks: int) -> int:
        return (blocks - 1) * size + params["last"]

    seqs = []
    for seq_id in (0, 1):
        blocks = params["own"] if seq_id == params["leaves"] else params["other"]
        seqs.append(bench.add(prefix + bench.tokens(length(blocks)), seq_id))
        bench.step()
    return bench, seqs[params["leaves"]], seqs[1 - params["leaves"]]


def ask_free_order(params: Params) -> Question:
    bench, leaver, stayer = play_free_order(params)
    blocks = bench.scheduler.block_manager.blocks
    rows = [Row(f"{seq_name(seq.seq_id)}'s block table",
                tuple(Chip(f"#{i}", f"×{blocks[i].ref_count}") for i in seq.block_table))
            for seq in sorted((leaver, stayer), key=lambda seq: seq.seq_id)]
    return Question(
        (f"Requests A and B are running and share the beginning of their prompts. Under each block stands its "
         f"ref_count. Now {seq_name(leaver.seq_id)} finishes.",
         "What is the free queue then, from head to tail?"),
        (*rows, Row("free queue now, head first", tuple(Chip(f"#{i}") for i in bench.queue))),
        items=tuple(range(params["num_blocks"])))


def answer_free_order(params: Params) -> list[int]:
    bench, leaver, _ = play_free_order(params)
    bench.finish(leaver)
    return bench.queue


def _own(params: Params) -> tuple[list[int], list[int], list[int]]:
    """The queue before, and of the one who leaves: the whole table, and the blocks that nobody else holds."""
    bench, leaver, stayer = play_free_order(params)
    table = list(leaver.block_table)
    return bench.queue, table, [i for i in table if i not in stayer.block_table]


def _forward(p: Params) -> list[Any]:
    queue, _, own = _own(p)
    return [queue + own]


def _at_the_head(p: Params) -> list[Any]:
    queue, _, own = _own(p)
    return [own + queue, own[::-1] + queue]


def _shared_too(p: Params) -> list[Any]:
    queue, table, _ = _own(p)
    return [queue + table[::-1], queue + table, table + queue, table[::-1] + queue]


def _full_ones_stay(p: Params) -> list[Any]:
    queue, _, own = _own(p)
    return [queue + own[-1:], queue]


def _only_new(p: Params) -> list[Any]:
    _, _, own = _own(p)
    return [own[::-1], own]


def _sorted(p: Params) -> list[Any]:
    queue, _, own = _own(p)
    return [sorted(queue + own), queue + sorted(own)]


def _backwards(p: Params) -> list[Any]:
    return [answer_free_order(p)[::-1]]


def explain_free_order(params: Params) -> str:
    queue, table, own = _own(params)
    kept = [i for i in table if i not in own]
    rest = "it: its ref_count" if len(kept) == 1 else "them: their ref_counts"
    return (f"The queue is {Order().show(answer_free_order(params))}. {Order().show(queue)} stood there before; then "
            f"the table was given back from its last block to its first. {Order().show(kept)} stayed in use, for the "
            f"other request still holds {rest} went down by one, not to zero.")


FREE_ORDER = Exercise(
    id="free-order", lab="00", title="The free queue after a request finishes", kind=Order(),
    draw=draw_free_order, ask=ask_free_order, answer=answer_free_order, explain=explain_free_order,
    misconceptions=(
        Misconception("first-block-first", _forward,
                      "You gave the blocks back from the first to the last. The engine goes through the table the "
                      "other way round. Whose block should be overwritten later: one from the beginning of a prompt, "
                      "or one from its end?"),
        Misconception("back-to-the-head", _at_the_head,
                      "You put the freed blocks at the head, as on a stack. Then they would be the next to be "
                      "overwritten, and nothing of them could be found again. Where do they have to go to be safe for "
                      "the longest time?"),
        Misconception("shared-is-freed", _shared_too,
                      "You freed every block of the table. Look at the ref_counts: what does the other request read "
                      "from, if the shared blocks are given away?"),
        Misconception("cached-is-not-free", _full_ones_stay,
                      "You kept the full blocks out of the queue, since their content can be found again. Free and "
                      "cached go together: a block may stand in the queue, ready to be taken, and be hit before that "
                      "happens."),
        Misconception("only-the-new-ones", _only_new,
                      "You listed only what has come free now. The blocks that stood in the queue before are still "
                      "there."),
        Misconception("in-order-of-id", _sorted,
                      "You sorted the blocks by their id. The queue keeps the order in which blocks came; the id says "
                      "only where in memory a block lies."),
        Misconception("tail-first", _backwards,
                      "All blocks are there and next to the right neighbours. You wrote the queue from tail to head; "
                      "begin with the one that is taken next."),
    ),
    hints=("Which blocks of the table does nobody else hold? Only those come free.",
           "What is in the queue stays where it is. Freed blocks join at the end that is taken last.",
           "The table is given back from its last block to its first, so the beginning of the prompt lands at the very "
           "tail and is overwritten last."),
    checked="every block of the queue and its place", not_checked="what is still cached in them",
    tags=("free",))

# --- second-turn: how much of a conversation is in the cache -------------------------------------------------------


def draw_second_turn(rng: Random) -> Params:
    size = rng.choice([4, 8, 16])
    while True:
        prompt, answer, new = rng.randint(size + 1, 5 * size), rng.randint(size, 4 * size), rng.randint(3, size)
        length = prompt + answer
        # The answer fills a block of its own, and the last one is not full: what happens at an exact boundary is a
        # story for a later lab.
        if prompt % size and length % size and prompt // size < length // size:
            return {"block_size": size, "prompt": prompt, "answer": answer, "new": new}


def play_second_turn(params: Params) -> Any:
    """Turn one runs to its end; then turn two, whose prompt begins with all of turn one, is admitted."""
    size = params["block_size"]
    length = params["prompt"] + params["answer"] + params["new"]
    bench = Bench(2 * (length // size + 2), size)
    first = bench.add(bench.tokens(params["prompt"]), 0, max_tokens=params["answer"])
    while not bench.scheduler.is_finished():
        bench.step()
    second = bench.add(first.token_ids + bench.tokens(params["new"]), 1)
    bench.scheduler.schedule()
    return second


def ask_second_turn(params: Params) -> Question:
    return Question(
        (f"A block holds {params['block_size']} tokens, and the pool has plenty of them. The first turn of a "
         f"conversation had a prompt of {params['prompt']} tokens and was answered with {params['answer']} tokens. It "
         "is finished, and nothing else has run since.",
         f"The prompt of the second turn is all of that, and then {params['new']} new tokens. How many of its tokens "
         "are found in the cache?"))


def answer_second_turn(params: Params) -> int:
    return play_second_turn(params).num_cached_tokens


def explain_second_turn(params: Params) -> str:
    size, cached = params["block_size"], answer_second_turn(params)
    length = params["prompt"] + params["answer"]
    return (f"Turn one left {length} tokens, which fill {cached // size} blocks; {cached // size} × {size} = {cached} "
            f"tokens are found, and the {length - cached} behind them, in a block that was not full, are computed "
            f"again together with the {params['new']} new ones.")


SECOND_TURN = Exercise(
    id="second-turn", lab="00", title="The second turn of a conversation", kind=Numeric("tokens"),
    draw=draw_second_turn, ask=ask_second_turn, answer=answer_second_turn, explain=explain_second_turn,
    misconceptions=(
        Misconception("every-token", lambda p: [p["prompt"] + p["answer"], p["prompt"] + p["answer"] - 1],
                      "You counted every token of the first turn. Only full blocks are registered and can be found; "
                      "what lies in a block that was never filled can't."),
        Misconception("prompt-only", lambda p: [p["prompt"] // p["block_size"] * p["block_size"], p["prompt"]],
                      "You counted only what belongs to the first prompt. The answer's tokens went through the model "
                      "too, and their blocks are registered as they fill."),
        Misconception("cache-is-gone", lambda p: [0],
                      "You took the blocks for lost when the first turn finished. They went to the free queue, and "
                      "keep their content until somebody else takes them."),
        Misconception("rounded-up", lambda p: [-(-(p["prompt"] + p["answer"]) // p["block_size"]) * p["block_size"]],
                      "You rounded up to whole blocks. The last block of the first turn was not full, so it was never "
                      "registered."),
        Misconception("all-of-turn-two", lambda p: [p["prompt"] + p["answer"] + p["new"],
                      (p["prompt"] + p["answer"] + p["new"]) // p["block_size"] * p["block_size"]],
                      "You counted new tokens in. Nobody has computed them yet, so they can't be in the cache."),
        Misconception("blocks-not-tokens",
                      lambda p: [(p["prompt"] + p["answer"]) // p["block_size"]],
                      "That is the number of blocks. The question asks for the tokens in them."),
        Misconception("the-rest", lambda p: [p["prompt"] + p["answer"] + p["new"] - answer_second_turn(p)],
                      "That is what has to be computed. The question asks for the other part: what does not."),
    ),
    hints=("The cache knows whole blocks only. How many blocks did the first turn fill?",
           "The first turn left the tokens of its prompt and of its answer, one after the other.",
           "Add the two lengths, divide by the block size, drop the remainder, and turn blocks into tokens again."),
    checked="the number of tokens", not_checked="which blocks they are in",
    tags=("prefix cache",))

EXERCISES = (GIVE_WAY, FREE_ORDER, SECOND_TURN)
