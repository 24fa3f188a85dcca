"""Made-up chat turns: everything the demo model ever reads.

Owns six kinds of questions and their answers, all made from the word lists below, so there is nothing to
attribute. The same seed gives the same turns. Leaves tokens and chat markers to ``vocabulary``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class Turn:
    question: str
    answer: str


ANIMALS = (
    "guanaco", "fox", "owl", "otter", "hedgehog", "goat", "goose", "beaver", "lizard", "sparrow", "badger",
)  # fmt: skip
NAMES = ("Ada", "Bruno", "Carla", "Dario", "Elin", "Fabio", "Greta", "Henri", "Ida", "Jonas", "Kira", "Luis")
THINGS = ("lantern", "map", "bell", "rope", "key", "kite", "basket", "whistle", "ladder", "mirror", "button")
PLACES = (
    "river", "forest", "hill", "village", "lake", "meadow", "harbour", "mountain", "garden", "bridge",
)  # fmt: skip
FEELINGS = ("sleepy", "cheerful", "curious", "nervous", "hungry", "bold", "lonely", "calm", "proud", "shy")
SKIES = ("rain", "snow", "sunshine", "wind", "fog", "storms", "hail", "clouds")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
VEGETABLES = ("potatoes", "carrots", "beans", "onions", "tomatoes", "peppers", "lentils", "leeks")
SPICES = ("salt", "pepper", "garlic", "parsley", "thyme", "mint", "cumin")
CAPITALS = {
    "Argentina": "Buenos Aires", "Austria": "Vienna", "Bolivia": "Sucre", "Canada": "Ottawa",
    "Chile": "Santiago", "Cuba": "Havana", "Egypt": "Cairo", "France": "Paris", "Greece": "Athens",
    "Ireland": "Dublin", "Italy": "Rome", "Japan": "Tokyo", "Kenya": "Nairobi", "Norway": "Oslo",
    "Peru": "Lima", "Poland": "Warsaw", "Portugal": "Lisbon", "Spain": "Madrid",
}  # fmt: skip
OPERATIONS = {"add": "+", "subtract": "-", "multiply": "*"}
ARGUMENTS = ("x", "n", "number", "price", "length")
COLD_DEGREES = 9
LARGEST_TERM = 20


def story(random: Random) -> Turn:
    """Five sentences in which the animal, its name, the thing and the place stay the same."""
    animal, friend = random.sample(ANIMALS, 2)
    name, thing = random.choice(NAMES), random.choice(THINGS)
    place, feeling = random.choice(PLACES), random.choice(FEELINGS)
    question = random.choice(
        (
            f"Tell me a story about {_a(animal)}.",
            f"Tell me a story about {_a(animal)} and {_a(thing)}.",
            f"Tell me about {_a(animal)} at the {place}.",
            f"Please write a story with {_a(animal)} in it.",
        )
    )
    sentences = (
        random.choice(
            (
                f"Long ago {_a(animal)} called {name} lived by the {place}.",
                f"There was once {_a(animal)} called {name} whose home was the {place}.",
            )
        ),
        random.choice(
            (
                f"One day {name} found {_a(thing)} in the grass and felt {feeling}.",
                f"One night {name} could not find the {thing} and felt {feeling}.",
                f"{name} had {_a(thing)} and nobody to share it with, and felt {feeling}.",
            )
        ),
        random.choice(
            (
                f'"What is wrong?" asked {_a(friend)} from the other side of the {place}.',
                f'{_a(friend).capitalize()} came by and said, "You look {feeling} today."',
            )
        ),
        random.choice(
            (
                f"So {name} told the {friend} all about the {thing}.",
                f'"It is the {thing}," said {name}, and the {friend} sat down to listen.',
            )
        ),
        random.choice(
            (
                f"Since then the {animal} and the {friend} meet at the {place} every evening.",
                f"They laughed until it was dark, and {name} was not {feeling} any more.",
                f"The {thing} still hangs by the {place}, and the two are still friends.",
            )
        ),
    )
    return Turn(question, " ".join(sentences))


def weather(random: Random) -> Turn:
    place, day, sky = random.choice(PLACES), random.choice(DAYS), random.choice(SKIES)
    low = random.randint(-5, 20)
    high = low + random.randint(2, 12)
    question = random.choice(
        (f"What will the weather be at the {place} on {day}?", f"How is the weather on {day} at the {place}?")
    )
    advice = "Wear something warm." if low < COLD_DEGREES else "A light shirt is enough."
    return Turn(question, f"Expect {sky} at the {place} on {day}, between {low} and {high} degrees. {advice}")


def arithmetic(random: Random) -> Turn:
    first, second = random.randint(1, LARGEST_TERM), random.randint(1, LARGEST_TERM)
    if random.random() < 0.5:
        return Turn(f"What is {first} plus {second}?", f"{first} plus {second} is {first + second}.")
    high, low = max(first, second), min(first, second)
    return Turn(f"What is {high} minus {low}?", f"{high} minus {low} is {high - low}.")


def recipe(random: Random) -> Turn:
    first, second = random.sample(VEGETABLES, 2)
    spice, minutes = random.choice(SPICES), random.randrange(10, 45, 5)
    question = random.choice(
        (f"What can I cook with {first} and {second}?", f"Do you have a recipe for {first} with {second}?")
    )
    return Turn(
        question,
        f"Try a stew. Peel the {first} and slice the {second}. Put both in a pot with some {spice}, cover "
        f"with water and let it simmer for {minutes} minutes. Taste it before you serve.",
    )


def capital(random: Random) -> Turn:
    country = random.choice(list(CAPITALS))
    return Turn(f"What is the capital of {country}?", f"The capital of {country} is {CAPITALS[country]}.")


def code(random: Random) -> Turn:
    verb, argument, amount = random.choice(list(OPERATIONS)), random.choice(ARGUMENTS), random.randint(2, 12)
    name = f"{verb}_{amount}"
    return Turn(
        f"Write a Python function called {name}.",
        f"def {name}({argument}):\n    return {argument} {OPERATIONS[verb]} {amount}\n",
    )


# Stories need the most practice: three turns in eight.
KINDS: tuple[Callable[[Random], Turn], ...] = (
    story, story, story, weather, arithmetic, recipe, capital, code,
)  # fmt: skip


def turns(seed: int) -> Iterator[Turn]:
    """Without end."""
    random = Random(seed)
    while True:
        yield random.choice(KINDS)(random)


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
