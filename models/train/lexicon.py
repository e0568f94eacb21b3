"""The words of the story world: who lives in it, what they own, and where things happen."""

# kind: (home, food, adjectives, names). A name ends in "f" or "m", which settles the pronouns.
KINDS = {
    "fox": ("in a den under an old oak", "berries and eggs", "little clever quick", "Ruby-f Rusty-m Tansy-f Finn-m"),
    "bear": ("in a cave on the hill", "honey and nuts", "big gentle sleepy", "Bruno-m Hazel-f Otto-m Wilma-f"),
    "rabbit": ("in a burrow at the edge of the meadow", "clover and carrots", "small shy quick", "Clover-f Pip-m Nell-f Jasper-m"),
    "owl": ("in a hollow tree in the forest", "moths and beetles", "old wise quiet", "Olive-f Hugo-m Wren-f Silas-m"),
    "mouse": ("behind the wall of the mill", "cheese and crumbs", "tiny brave little", "Mina-f Toby-m Dot-f Felix-m"),
    "hedgehog": ("under a pile of leaves in the garden", "beetles and fallen apples", "small careful shy", "Bram-m Poppy-f Spike-m Ivy-f"),
    "badger": ("in a deep burrow below the hill", "roots and mushrooms", "old stubborn careful", "Bertram-m Edith-f Gus-m Maud-f"),
    "duck": ("in the reeds beside the pond", "water plants and grain", "young cheerful busy", "Daisy-f Drake-m Lotte-f Paul-m"),
    "cat": ("in a warm kitchen in the village", "fish and milk", "grey proud curious", "Misty-f Tom-m Luna-f Oscar-m"),
    "dog": ("in a yard behind the bakery", "bones and bread", "loyal young merry", "Max-m Bella-f Rex-m Lulu-f"),
    "frog": ("under a flat stone by the pond", "flies and gnats", "small green merry", "Fergus-m Lily-f Hop-m Fern-f"),
    "squirrel": ("high in a pine tree", "acorns and pine nuts", "quick busy little", "Nutmeg-f Chip-m Sally-f Jack-m"),
    "goat": ("in a stable on the mountain", "grass and thistles", "stubborn white merry", "Greta-f Billy-m Heidi-f Karl-m"),
    "turtle": ("on the sandy bank of the river", "leaves and water snails", "slow old patient", "Theo-m Tilda-f Moss-m Agnes-f"),
    "crow": ("on the roof of the old tower", "seeds and worms", "black clever proud", "Corbin-m Vera-f Ink-m Sable-f"),
    "otter": ("in a snug hole in the river bank", "fish and crabs", "playful young merry", "Oona-f Rollo-m Tess-f Brook-m"),
    "mole": ("in a tunnel under the garden", "worms and roots", "small quiet patient", "Morris-m Velvet-f Digby-m Ada-f"),
    "pig": ("in a sty beside the barn", "apples and turnips", "round cheerful hungry", "Rosie-f Wilbert-m Peony-f Hamish-m"),
    "pony": ("in a stable near the village", "hay and oats", "brown gentle young", "Star-f Copper-m Bonny-f Duke-m"),
    "goose": ("in a shed behind the farm", "grass and grain", "white proud loud", "Gilda-f Gregor-m Blanche-f Ned-m"),
    "donkey": ("in a field beside the mill", "hay and thistles", "grey patient stubborn", "Dusty-m Juno-f Benno-m Clara-f"),
    "girl": ("in a small house by the sea", "bread and soup", "brave curious kind", "Anna-f Mira-f Sophie-f Emma-f"),
    "boy": ("in a cottage at the end of the lane", "bread and jam", "kind curious dreamy", "Leo-m Peter-m Sam-m Noah-m"),
    "baker": ("above the bakery in the village", "warm bread", "kind busy cheerful", "Martha-f Anton-m"),
    "miller": ("in the mill beside the river", "pancakes", "strong honest quiet", "Walter-m Johanna-f"),
    "sailor": ("in a cabin near the harbour", "fish stew", "old brave merry", "Simon-m Marina-f"),
    "gardener": ("in a hut between the apple trees", "fresh vegetables", "patient gentle kind", "Rose-f Albert-m"),
    "shepherd": ("in a stone hut on the mountain", "cheese and bread", "young patient lonely", "David-m Elsa-f"),
    "tailor": ("in a narrow house near the market", "noodles and beans", "careful poor clever", "Emil-m Ida-f"),
}

# object: (adjectives, what it is for, tag). The tag names the kind of trouble that it can end.
OBJECTS = {
    "lamp": ("brass old", "gives light when it is dark", "light"),
    "lantern": ("red tin", "gives light on a dark road", "light"),
    "candle": ("white thick", "gives a small warm light", "light"),
    "rope": ("long strong", "helps to pull heavy things", "pull"),
    "ladder": ("wooden tall", "helps to climb to high places", "climb"),
    "bell": ("silver little", "rings so that others can hear it", "call"),
    "whistle": ("tin shiny", "makes a sound that carries far", "call"),
    "drum": ("round red", "makes a deep sound that carries far", "call"),
    "flute": ("wooden slender", "makes soft music", "music"),
    "fiddle": ("brown old", "makes merry music", "music"),
    "blanket": ("woollen blue", "keeps you warm at night", "warm"),
    "scarf": ("long yellow", "keeps your neck warm", "warm"),
    "coat": ("thick green", "keeps you warm in winter", "warm"),
    "umbrella": ("big blue", "keeps you dry in the rain", "rain"),
    "map": ("old folded", "shows you the way", "way"),
    "compass": ("golden round", "always points to the north", "way"),
    "key": ("rusty golden", "opens a lock", "open"),
    "boat": ("small wooden", "carries you over the water", "cross"),
    "raft": ("flat sturdy", "floats on the water", "cross"),
    "bucket": ("tin heavy", "carries water", "water"),
    "pot": ("black iron", "is for cooking soup", "cook"),
    "spoon": ("wooden big", "is for stirring soup", "cook"),
    "shovel": ("sharp new", "is for digging holes", "dig"),
    "cart": ("wooden green", "carries heavy things", "carry"),
    "basket": ("round straw", "carries many things at once", "carry"),
    "hammer": ("heavy old", "is for mending broken things", "mend"),
    "needle": ("thin silver", "is for mending torn cloth", "sew"),
    "kite": ("red paper", "flies high in the wind", ""),
    "ball": ("bright leather", "is for playing", ""),
    "book": ("thick old", "is full of stories", ""),
    "hat": ("tall straw", "keeps the sun out of your eyes", ""),
    "button": ("shiny blue", "holds a coat together", ""),
    "ring": ("golden thin", "is worn on a finger", ""),
    "shell": ("pink smooth", "sounds like the sea", ""),
    "feather": ("white long", "is light and soft", ""),
    "mirror": ("small round", "shows you your own face", ""),
    "clock": ("old wooden", "tells you the time", ""),
    "cup": ("blue painted", "is for drinking", ""),
}

# (name with its article, the same as a phrase of place)
PLACES = [
    ("the river", "by the river"), ("the forest", "in the forest"), ("the meadow", "in the meadow"),
    ("the old bridge", "on the old bridge"), ("the hill", "on the hill"), ("the pond", "by the pond"),
    ("the mill", "behind the mill"), ("the orchard", "in the orchard"), ("the market", "at the market"),
    ("the barn", "in the barn"), ("the well", "beside the well"), ("the harbour", "at the harbour"),
    ("the garden", "in the garden"), ("the tower", "below the tower"),
]

# (adjective-like opening, weather that fits the season)
SEASONS = [
    ("spring", "The first flowers were open and the air was mild."),
    ("summer", "The sun was warm and the bees were humming."),
    ("autumn", "The leaves were red and a cool wind was blowing."),
    ("winter", "The snow lay deep and the air was clear and cold."),
]

TRADES = {"baker", "miller", "sailor", "gardener", "shepherd", "tailor"}
