"""Generates arithmetic word problems in the JSONL format of GSM8K.

Each problem is a dict with `question` and `answer`; the answer is worked, one step a line, and ends with the line
`#### n`. Problems have one to three steps of + - * and exact division. Numbers stay below 110 so that a model of two
million parameters can learn every fact it needs; the variety is in the stories.

Everything is drawn from the `random.Random` that the caller passes: the same seed gives the same problems.
"""

import random

SEED = 20240517  # of everything random about the bundled model; training data of chunk c uses SEED * 1000 + c
HELDOUT_SEED, VALIDATION_SEED = SEED + 1, SEED + 2
HELDOUT_COUNT = 500

FEMALE = ["Anna", "Maria", "Lena", "Sara", "Emma", "Julia", "Nora", "Mia", "Ella", "Rosa", "Lucy", "Kate"]
MALE = ["Tom", "Ben", "Sam", "Max", "Paul", "David", "Leo", "Jack", "Adam", "Omar", "Felix", "Peter"]
FOOD = ["apples", "oranges", "cookies", "pears", "plums", "candies", "grapes", "nuts", "cherries", "cakes"]
THINGS = ["marbles", "pencils", "stickers", "books", "stamps", "cards", "coins", "shells", "balls", "toys", "stones", "beads"]
PRICED = [("pen", "pens"), ("book", "books"), ("ticket", "tickets"), ("cup", "cups"), ("toy", "toys"), ("cake", "cakes"),
          ("hat", "hats"), ("lamp", "lamps"), ("ball", "balls"), ("plant", "plants")]
HOLDERS = [("box", "boxes"), ("bag", "bags"), ("basket", "baskets"), ("jar", "jars"), ("tray", "trays"), ("shelf", "shelves")]
PLACES = ["at school", "in the garden", "in the park", "under the bed", "at the market", "in the kitchen"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
GROUPS = ["friends", "children", "students", "cousins", "neighbors"]
WORK = ["washing cars", "walking dogs", "painting fences", "teaching music", "working in a shop", "cleaning windows"]


class Person:
    """A name with its pronouns: `sub` opens a sentence, `obj` is the object form, `low` is `sub` inside one."""

    def __init__(self, name):
        self.name = name
        self.sub, self.low, self.obj = ("She", "she", "her") if name in FEMALE else ("He", "he", "him")


def people(rng, count):
    return [Person(name) for name in rng.sample(FEMALE + MALE, count)]


def change_step(rng, who, other, things, value):
    """One buying, finding, eating ... of a running stock: returns (sentence, worked line, new value)."""
    amount = rng.randint(2, 20)
    add = rng.random() < 0.5 if 5 <= value <= 79 else value < 5
    if add:
        sentence = rng.choice([
            f"{who.sub} buys {amount} more {things}.",
            f"{other.name} gives {who.obj} {amount} {things}.",
            f"{who.sub} finds {amount} {things} {rng.choice(PLACES)}.",
            f"Then {who.low} gets {amount} more {things} from {other.name}.",
        ])
        return sentence, f"{who.name} has {value}+{amount}={value + amount} {things}.", value + amount
    amount = min(amount, value - 2)
    verb = rng.choice(["gives", "loses", "sells", "eats" if things in FOOD else "breaks"])
    target = f" to {other.name}" if verb == "gives" else ""
    sentence = rng.choice(["", "Then "]) + f"{who.low} {verb} {amount} {things}{target}."
    sentence = sentence[0].upper() + sentence[1:]
    return sentence, f"{who.name} has {value}-{amount}={value - amount} {things} left.", value - amount


def stock(rng):
    """A stock that grows and shrinks, perhaps packed in boxes at first, perhaps shared at the end."""
    who, other = people(rng, 2)
    things = rng.choice(FOOD + THINGS)
    steps = rng.randint(1, 3)
    story, lines = [], []
    if rng.random() < 0.4:
        each, holders = rng.randint(2, 9), rng.randint(2, 9)
        one, many = rng.choice(HOLDERS)
        story.append(rng.choice([
            f"{who.name} has {holders} {many} with {each} {things} in each {one}.",
            f"{who.name} has {holders} {many} of {things}. Each {one} holds {each} {things}.",
        ]))
        value = holders * each
        lines.append(f"{who.name} has {holders}*{each}={value} {things}.")
    else:
        value = rng.randint(4, 40)
        story.append(f"{who.name} {rng.choice(['has', 'starts with', 'owns'])} {value} {things}.")
    while len(lines) < steps:
        sentence, line, value = change_step(rng, who, other, things, value)
        story.append(sentence)
        lines.append(line)
    story.append(f"How many {things} does {who.name} have{rng.choice([' now', ' in the end', ''])}?")
    return story, lines, value


def share(rng):
    """Things from one or two sources are shared equally."""
    who, other = people(rng, 2)
    things = rng.choice(FOOD + THINGS)
    group = rng.choice(GROUPS)
    count, each = rng.randint(2, 9), rng.randint(2, 9)
    total = count * each
    story, lines = [], []
    if rng.random() < 0.5 or total < 6:
        story.append(f"{who.name} has {total} {things}.")
    elif rng.random() < 0.5:
        more = rng.randint(2, min(20, total - 2))
        story.append(f"{who.name} has {total - more} {things} and {rng.choice(['buys', 'finds', 'gets'])} {more} more.")
        lines.append(f"{who.name} has {total - more}+{more}={total} {things}.")
    else:
        less = rng.randint(2, 20)
        story.append(f"{who.name} has {total + less} {things} and keeps {less} of them.")
        lines.append(f"{total + less}-{less}={total} {things} are shared.")
    lines.append(f"Each gets {total}/{count}={each} {things}.")
    story.append(rng.choice([
        f"{who.sub} shares {'them' if len(lines) == 1 else 'the ' + things} equally among {count} {group}.",
        f"{who.sub} gives the same number of {things} to each of {count} {group}.",
    ]) if len(lines) == 1 or "keeps" not in story[0] else f"{who.sub} shares the rest equally among {count} {group}.")
    story.append(f"How many {things} does each of the {group} get?")
    return story, lines, each


def compare(rng):
    """Two people, the second has more, fewer or a multiple; the question may ask for the sum."""
    first, second = people(rng, 2)
    things = rng.choice(FOOD + THINGS)
    value = rng.randint(4, 25)
    kind = rng.choice(["more", "fewer", "times"])
    if kind == "times":
        factor, value = rng.randint(2, 4), rng.randint(2, 12)
        phrase = {2: "twice"}.get(factor, f"{factor} times")
        story = [f"{first.name} has {value} {things}.", f"{second.name} has {phrase} as many {things} as {first.name}."]
        result, line = value * factor, f"{value}*{factor}={value * factor}"
    else:
        amount = rng.randint(2, 12)
        if kind == "fewer":
            value = amount + rng.randint(2, 15)
        result = value + amount if kind == "more" else value - amount
        story = [f"{first.name} has {value} {things}.", f"{second.name} has {amount} {kind} {things} than {first.name}."]
        line = f"{value}{'+' if kind == 'more' else '-'}{amount}={result}"
    lines = [f"{second.name} has {line} {things}."]
    if rng.random() < 0.6:
        story.append(f"How many {things} do {rng.choice(['they', f'{first.name} and {second.name}'])} have together?")
        lines.append(f"Together they have {value}+{result}={value + result} {things}.")
        return story, lines, value + result
    story.append(f"How many {things} does {second.name} have?")
    return story, lines, result


def shop(rng):
    """Prices: one item, two items, or change from a note."""
    (who,) = people(rng, 1)
    (one, many), (one2, many2) = rng.sample(PRICED, 2)
    price, count = rng.randint(2, 9), rng.randint(2, 9)
    kind = rng.choice(["one", "change", "two"])
    if kind == "two":
        price, count, price2, count2 = (rng.randint(2, 9), rng.randint(2, 5), rng.randint(2, 9), rng.randint(2, 5))
        cost, cost2 = price * count, price2 * count2
        story = [f"A {one} costs {price} dollars and a {one2} costs {price2} dollars.",
                 f"{who.name} buys {count} {many} and {count2} {many2}.",
                 f"How much does {who.low} pay{rng.choice(['', ' in total'])}?"]
        return story, [f"The {many} cost {count}*{price}={cost} dollars.", f"The {many2} cost {count2}*{price2}={cost2} dollars.",
                       f"{who.name} pays {cost}+{cost2}={cost + cost2} dollars."], cost + cost2
    cost = price * count
    story = [f"A {one} costs {price} dollars.", f"{who.name} buys {count} {many}."]
    lines = [f"The {many} cost {count}*{price}={cost} dollars."]
    if kind == "one":
        story.append(f"How much {rng.choice([f'does {who.low} pay', f'do the {many} cost'])}?")
        return story, lines, cost
    note = rng.choice([bill for bill in (20, 50, 100) if bill > cost])
    story.append(f"{who.sub} pays with {note} dollars. How much change does {who.low} get?")
    lines.append(f"The change is {note}-{cost}={note - cost} dollars.")
    return story, lines, note - cost


def wages(rng):
    """Hours on two days times a wage, perhaps minus an expense."""
    (who,) = people(rng, 1)
    first, second = rng.sample(DAYS, 2)
    wage, hours, hours2 = rng.randint(2, 9), rng.randint(2, 5), rng.randint(2, 4)
    total = hours + hours2
    story = [f"{who.name} earns {wage} dollars an hour {rng.choice(WORK)}.",
             f"{who.sub} works {hours} hours on {first} and {hours2} hours on {second}."]
    lines = [f"{who.name} works {hours}+{hours2}={total} hours.", f"{who.sub} earns {total}*{wage}={total * wage} dollars."]
    money = total * wage
    if rng.random() < 0.4 and money > 24:
        spent = rng.randint(2, 20)
        one, _ = rng.choice(PRICED)
        story.append(f"{who.sub} buys a {one} for {spent} dollars. How much money does {who.low} have left?")
        lines.append(f"{who.sub} has {money}-{spent}={money - spent} dollars left.")
        return story, lines, money - spent
    story.append(f"How much money does {who.low} earn?")
    return story, lines, money


def ages(rng):
    first, second = people(rng, 2)
    age, gap = rng.randint(14, 40), rng.randint(2, 12)
    older = rng.random() < 0.5
    now = age + gap if older else age - gap
    story = [f"{first.name} is {age} years old.", f"{second.name} is {gap} years {'older' if older else 'younger'} than {first.name}."]
    lines = [f"{second.name} is {age}{'+' if older else '-'}{gap}={now} years old."]
    if rng.random() < 0.6:
        later = rng.randint(2, 20)
        story.append(f"How old will {second.name} be in {later} years?")
        lines.append(f"In {later} years {second.name} will be {now}+{later}={now + later} years old.")
        return story, lines, now + later
    story.append(f"How old is {second.name}?")
    return story, lines, now


def progress(rng):
    """So much a day for some days out of a total."""
    (who,) = people(rng, 1)
    unit, verb, whole = rng.choice([("pages", "reads", "The book has"), ("miles", "walks", "The trail has"),
                                    ("puzzles", "solves", "The book has"), ("trees", "plants", "The plan has"),
                                    ("letters", "writes", "The list has")])
    rate, days, rest = rng.randint(2, 9), rng.randint(2, 9), rng.randint(2, 20)
    done = rate * days
    story = [f"{who.name} {verb} {rate} {unit} {rng.choice(['each', 'every', 'a'])} day for {days} days."]
    lines = [f"In {days} days {who.name} {verb} {days}*{rate}={done} {unit}."]
    if rng.random() < 0.5:
        story.append(f"{whole} {done + rest} {unit}. How many {unit} are left?")
        lines.append(f"There are {done + rest}-{done}={rest} {unit} left.")
        return story, lines, rest
    story.append(f"How many {unit} is that?")
    return story, lines, done


BUILDERS = [(stock, 8), (share, 4), (compare, 5), (shop, 5), (wages, 3), (ages, 3), (progress, 3)]


def make_problem(rng):
    """One problem: {"question": str, "answer": str}."""
    builder = rng.choices([b for b, _ in BUILDERS], [w for _, w in BUILDERS])[0]
    story, lines, value = builder(rng)
    return {"question": " ".join(story), "answer": "\n".join(lines) + f"\n#### {value}"}


def make_problems(seed, count, avoid=frozenset()):
    """`count` problems whose questions are all different and not in `avoid`."""
    rng, seen, problems = random.Random(seed), set(), []
    while len(problems) < count:
        problem = make_problem(rng)
        if problem["question"] not in seen and problem["question"] not in avoid:
            seen.add(problem["question"])
            problems.append(problem)
    return problems


def final_number(answer):
    """The text after the last `####`, or None: how an answer is graded."""
    return answer.rsplit("####", 1)[1].strip() if "####" in answer else None
