"""Keys of the needles: adjective-noun pairs from a list of this project's own (RULER takes wonderwords' lists)."""

_ADJECTIVES = """
able amber ancient bitter blank bold brave brief bright broad calm careful cheap clean clever cold common
cool cruel curly damp dark deep dense distant dry dull eager early eastern easy empty even faint fair
false fancy fast fierce final fine firm flat fresh gentle giant golden grand gray great green happy harsh
heavy hidden hollow honest humble icy idle jolly keen kind large late lazy light little lively lone loud
lucky mild modern narrow neat noble northern odd old open pale patient plain polite proud pure quick
quiet rapid rare ready rich rough round royal rusty sad safe sharp short shy silent silver simple slow
small smooth soft solid southern spare steady steep stiff strange strong subtle sunny sweet swift tall
tame tender thick thin tidy tiny tired tough true urban vague vast vivid warm weak wet wide wild wise
young
"""
_NOUNS = """
acorn actor anchor apple apron arrow badge baker barn basin beacon bear bell bench berry bird blade boat
bottle bowl branch bread brick bridge broom brush bucket button cabin camel candle canyon carpet castle
cedar chain chair cliff cloak clock cloud coach coast comet copper cotton crane crow crown curtain dancer
deer desk dish doctor donkey dove dragon drum eagle engine falcon farmer feather fence ferry field flame
flute forest fork fossil fountain fox garden gate glove goat grape guitar hammer harbor hawk hedge helmet
hill horse island jacket jewel judge kettle king kite ladder lake lamp lantern leaf lemon letter lion
lizard magnet maple market meadow melon mirror monk moon mountain needle nest oak ocean olive onion
orange otter owl paddle palace panther paper parrot peach pearl pencil piano pigeon pillow pilot planet
plum pocket pond pony potter prince puzzle rabbit raven ribbon river road robin rocket rope rose saddle
sailor salmon school shadow sheep shell shield ship shoe singer spoon spring squirrel stone storm stove
summer swan table tailor temple thread tiger tower trumpet tulip tunnel turtle valley violin wagon walnut
water whale wheel willow window winter wolf zebra
"""
ADJECTIVES, NOUNS = _ADJECTIVES.split(), _NOUNS.split()
PAIRS = tuple(f"{adjective}-{noun}" for adjective in ADJECTIVES for noun in NOUNS)
SINGLE = tuple(sorted({*ADJECTIVES, *NOUNS}))
