# ruff: noqa: E501  (one pattern a line reads better than broken ones)
"""What the rules backend knows of English: word lists and cue patterns. Data only; how they combine is in `rules`.

Every pattern sees one clause, lower case, straight apostrophes, quoted text blanked out as ``q``.
"""

from __future__ import annotations

import re


def words(text: str) -> frozenset[str]:
    """A word list."""
    return frozenset(text.split())


def cues(*patterns: str) -> tuple[re.Pattern[str], ...]:
    """Compiled cue patterns."""
    return tuple(re.compile(pattern) for pattern in patterns)


#: Words about the form, length, language, tone or care of an answer: what a preference is about.
FORM = words(
    """short sweet shorter shortest brief briefer briefly concise concisely succinct terse compact long longer lengthy
    length detail details detailed verbose wordy wordiness rambling long-winded sentence sentences word words paragraph
    paragraphs line lines one-liner bullet bullets bulleted bullet-point bullet-points point points list lists listed
    numbered numbering numbers table tables tabular markdown bold italics italic heading headings header headers title
    titles json yaml xml csv html code snippet snippets codeblock plain text prose format formatted formatting layout
    emoji emojis emoticon emoticons smiley smileys exclamation exclamations caps capitals capital-letters lowercase
    uppercase punctuation dash dashes comma commas french english german spanish italian portuguese dutch polish russian chinese
    mandarin japanese korean arabic hindi turkish swedish danish norwegian finnish greek latin language languages
    formal informal formally casual casually friendly friendlier polite politely warm warmer tone style voice greeting
    essay essays novel lecture monologue greet greets greeted iso hello hi goodbye farewell sign-off signature name nickname jargon technical simple simpler simply
    plainly plainer clear clearer easy easier humor humour joke jokes sarcasm cite cites cited citing citation
    citations source sources sourced reference references link links url urls quote quotes example examples step
    steps step-by-step intro introduction preamble summary conclusion recap tldr disclaimer disclaimers apology
    apologies apologise apologize apologizing apologising warning warnings caveat caveats filler fluff small-talk
    chit-chat padding repetition repeat repeating direct directly straight precise precisely specific vague accurate units
    metric imperial celsius fahrenheit date dates rounding decimals decimal emphasis spelling grammar typos typo
    comments docstring docstrings types indentation tabs spaces haiku poem rhyme rhymes metaphor metaphors analogy analogies
    first-person third-person pirate slang abbreviations acronyms vivid lively crisp snappy punchy engaging thorough structured readable tidy thoughtful question-mark follow-up closing opening
    first last end beginning start"""
)

#: Form words that also stand in any other talk; they count only next to another form word or a strong cue.
WEAK_FORM = words(
    """first last end beginning start name title titles example examples question-mark numbers words word code types comments
    date dates source link table tables text repeat opening closing summary long quote hello hi text joke jokes
    poem types begin q line lines step steps points point warm easy clear simple specific direct language languages"""
)

#: The answer itself, and those who talk.
ANSWER = words(
    """answer answers answered answering reply replies replied replying respond responds responding response responses explanation
    explanations output outputs message messages it that this these those them they one ones result text your you
    me my i we us our i'd i'll i'm i've you're you've you'd it's that's which"""
)

#: Words that carry no topic.
FUNCTION = words(
    """a an and any anything are aren't as at be been being but by can can't cannot could couldn't did didn't do does doesn't
    don't done each either else even ever every everything few fewer for from get gets go goes going gonna got had
    has have haven't having here hey how however if in instead into is isn't just keep keeps keeping kept kind let
    let's like liked likes lot lots make makes making made many may maybe might more most much must need needs needed
    never next no nope not nothing now of off oh ok okay on once only or other otherwise out over own per perhaps
    please pls plz quite rather really same should shouldn't since so some something sort still stuff such sure than
    thank thanks thx the their then there thing things though time times to too try under until up upon use used uses
    using very via want wanted wants was wasn't way ways well were weren't what what's when where while who why will
    with within without won't would wouldn't yeah yep yes yet bit little less least enough always again before after
    all also already because both actually basically almost anymore away back about ask asked asking say said
    saying tell told telling talk write writes written writing wrote give gives giving gave put puts add adds added
    adding include includes included including begin begins beginning starts starting ending ends finish stop stopped
    avoid skip drop leave leaving left cut cutting trim limit stick remember future forward forth prefer
    preferred prefers preference love loved loves hate dislike wish expect expected think mean meant format show see
    stay speak call called calling address refer treat look looks looking feel feels seem seems sound sounds work works
    worked one two three four five six seven eight nine ten half dozen single couple max maximum minimum most least than
    shorter q x right good better best great perfect fine nice cool awesome exactly just pretty fully totally
    completely absolutely definitely extra additional unnecessary needless correct wrong bad mind possible possibly
    able kindly it'd that'd would've simply literally plenty sufficient started honestly hmm um uh wow ah sorry glad happy helpful far whole entire full instead"""
)

#: Verbs that open a new request for content; only their object says what it is about.
CONTENT_VERBS = (
    r"tell|explain|describe|list|name|summari[sz]e|translate|define|compare|compute|calculate|solve|find|search|create|"
    r"generate|draft|compose|write|give|show|make|build|implement|fix|help|recommend|suggest|discuss|outline|teach|"
    r"plan|book|order|open|run|read|check|look|update|change|rename|delete|add|convert|continue|do|design|review|"
    r"analy[sz]e|estimate|count|draw|play|remind|schedule|send|buy|imagine|consider|let's"
)

#: Verbs with which a user shapes the answer itself.
STYLE_VERBS = (
    r"be|keep|make|use|write|answer|reply|respond|start|begin|open|end|close|finish|conclude|stop|avoid|skip|drop|leave|"
    r"cut|shorten|trim|limit|stick|try|include|add|give|put|format|cite|quote|mention|speak|talk|say|remember|"
    r"remove|omit|greet|call|number|rewrite|rephrase|reword|redo|simplify|condense|address|show|get|lead|stay|restrict|"
    r"switch|go|provide|list|explain|summari[sz]e|structure|organi[sz]e|have|mind|focus|bring|translate|ditch|lose|spare"
)

#: What may stand before the words that count.
OPENER = re.compile(
    r"^(?:\W*(?:(?:thanks|thank you|thx)(?: so much| a lot)? for|and|but|so|then|also|now|well|oh|ah|hey|hi|hmm+|um+|ok|okay|alright|wow|yes|yep|yeah|yup|sure|no(?=\W*[,.!;:-])|nope|"
    r"please|pls|plz|thanks|thank you(?: so much| very much)?|thx|cheers|sorry|great|perfect|nice|good|cool|right|"
    r"exactly(?=\W*[,.!;:-])|excellent|awesome|lovely|however|though|though still|again|actually|finally)\b[\s,.!:;-]*)+"
)

AFFIRM = re.compile(
    r"^\W*(?:oh |ah |wow )?(?:yes|yep|yeah|yup|aha|finally|great|perfect|nice|good|right|exactly$|cool|lovely|awesome|excellent|"
    r"there (?:you go|we go|it is)|ok|okay)\b"
)
NO_OPENER = re.compile(r"^\W*(?:no|nope|nah)\b")
POLITE_NO = re.compile(
    r"^\W*(?:no|nope|nah)\W+(?:thanks|thank you|worries|problem|need|that's all|that is all|that's it|i'm (?:good|fine|done))\b"
)

QUESTION_START = re.compile(
    r"^(?:what|what's|whats|why|how|who|who's|whom|whose|where|where's|when|which|is|are|am|was|were|do|does|did|has|"
    r"have|had|will|would|can|could|should|shall|may|might|isn't|aren't|doesn't|don't|didn't|any)\b"
)
WH_START = re.compile(r"^(?:what|what's|whats|why|how|who|who's|whom|whose|where|where's|which|when)\b")
RELATIVE = re.compile(
    r"^(?:what|how|which|when|where) (?:i|we|you)\b(?!.*\?)|^which (?:is|was|isn't|wasn't)\b|^when(?:ever)? you\b|^how (?:it|this|that) should\b"
)
REQUEST_QUESTION = re.compile(r"^(?:can|could|would|will|won't|can't|couldn't|may|might) (?:you|we|i|it|that|this)\b")
WHY_COMPLAINT = re.compile(
    r"^(?:why|how come)\b.*?\b(?:so|such|too|did you|didn't you|do you|don't you|aren't you|are you|is it|is this|is that|was it|"
    r"was that|you)\b"
)

#: Approval, wherever the rest of the clause is about nothing else.
APPROVE = cues(
    r"\b(?:just|exactly|precisely|that's|is|was|much) (?:how|what|the way|as) (?:i|we)\b",
    r"^(?:exactly|precisely|just) (?:right|that|this|like (?:that|this)|so)\b|^(?:that's |this is |yes |yeah )?(?:exactly|precisely)$",
    r"^(?:absolutely |really |just )?lov(?:e|ed|ing) (?:it|this|that|how|the|your)\b",
    r"^(?:\W*(?:that's|this is|that is|it's|that was|this was|looks?|sounds?|so|oh|wow|yes|yeah|ok|and|absolutely|exactly|precisely|totally|perfectly|really|just|"
    r"simply|much|way|now|already|a|the|an|very|pretty|all|quite|is|answer|reply|length|format|style|tone|my))*\s*"
    r"(?:perfect|perfection|excellent|great|awesome|wonderful|brilliant|fantastic|superb|lovely|ideal|spot on|amazing|correct|"
    r"right|better|nice|good|fine|beautiful|neat|bingo|bravo|helpful|useful)"
    r"(?=\W*$|\W+(?:thanks|thank|thx|answer|answers|reply|response|length|format|style|tone|job|work|one|now|this|that|like|as|and|"
    r"stuff|enough for|for me|to me|with|i)\b)",
    r"\bspot on\b|\bnailed it\b|\bwell done\b|\blgtm\b|\bgood job\b|\bgood bot\b|\bnice work\b|\bgreat job\b|\blooks good\b|\bsounds good\b",
    r"\b(?:i|we|really|just|absolutely) (?:love|like|liked|loved|appreciate|enjoy|enjoyed) (?:it|this|that|how|the way|the|your|these|those|when)\b",
    r"\b(?:keep|keeping|carry on|continue|stay|stick|going|do|doing|answer|write|reply|always)\b.{0,24}\b(?:like (?:this|that)|this way|that way|"
    r"it up|doing (?:this|that)|with (?:this|that)|(?:this|that) (?:short|brief|concise|simple|clear|style|format|length|tone))\b",
    r"\b(?:more|answers|replies|one) (?:just )?like (?:this|that)\b|\bthat's (?:it|the one|the spirit|the idea|more like it)$|\bmore like it\b",
    r"\b(?:that|it|this) (?:worked|works|helped|helps|does the trick|did the trick|fixed it|solved it)\b|\bworks (?:now|great|well|perfectly|fine)\b",
    r"^(?:much|way|far|so much|a lot) better\b|\byou (?:got|nailed|understood|listened|remembered|read my mind)\b",
    r"^(?:\W*(?:now|finally)\W+)?(?:that's|this is|now that's) (?:a|an|the) (?:\w+ ){0,2}(?:answer|reply|response|length|format|style|way|sentence)\b.*\b(?:like|want|need|love|looking)",
    r"\b(?:i|we) (?:really )?(?:like|love|prefer|want)\b.*\b(?:like (?:this|that)|this way|that way)$|\bto the point$|\b(?:short|brief) and sweet\b",
    r"^(?:that's |this is |it's )?(?:exactly|precisely|just) the (?:\w+ ){1,5}(?:i|we)(?:'d)? (?:want|need|like|ask|hope|look|expect)(?:ed|d)?\b(?: for\b)?",
    r"\bcouldn't (?:be|have been|ask for) (?:better|more)\b|\bno complaints\b|\bjust right\b|\bas (?:i )?(?:asked|requested|wanted)\b",
)
#: Approval when the clause names a form.
APPROVE_FORM = cues(
    r"^(?:\w+ )?(?:thanks|thank you|thx)(?: so much| a lot)? for\b", r"\b(?:glad|happy) (?:that )?you\b"
)
EMOJI_APPROVE = re.compile("[\U0001f44d\U0001f44f\U0001f64c\U0001f60d\U0001f929\u2705\U0001f4af\u2764]")
EMOJI_COMPLAIN = re.compile("[\U0001f44e\U0001f621\U0001f620\U0001f644\u274c]")

#: Complaint about the answer: about it alone unless a strong cue says more.
COMPLAIN = cues(
    r"\b(?:too|overly) (?!and\b|but\b|please\b|thanks\b|if\b|when\b|for\b)\w+",
    r"\b(?:so|very|really|way|such a|awfully|quite|rather|pretty|unnecessarily|needlessly) (?:damn )?"
    r"(?:long|verbose|wordy|short|formal|vague|technical|complicated|confusing|boring|generic|robotic|long-winded)\b",
    r"\b(?:wrong|incorrect|inaccurate|terrible|awful|useless|unhelpful|horrible|confusing|annoying|disappointing|verbose|wordy|"
    r"long-winded|rambling|sloppy|bad|nonsense|garbage|rubbish|overkill|unclear|unreadable|off-topic|irrelevant)\b",
    r"\b(?:isn't|not|wasn't|aren't|never) (?:\w+ )?(?:what|how|the way) (?:i|we)\b",
    r"\b(?:not|isn't|wasn't|doesn't look|don't look|hardly|didn't) (?:quite |really |very |exactly |at all |so |that )?"
    r"(?:right|correct|good|helpful|useful|great|nice|working|work|help|clear|readable|true|enough|ideal|okay|ok)\b",
    r"\b(?:doesn't|does not|didn't|did not|don't|won't) (?:\w+ )?(?:work|help|answer|compile|run|make sense|pass)\b",
    r"\b(?:not|hardly|barely) (?:\w+ )?enough\b|\btoo much\b|\b(?:more|longer|bigger) than i\b",
    r"\bwall of text\b|\b(?:an? )?(?:whole |entire )?(?:essay|lecture|novel|monologue|life story)\b",
    r"\bcould(?:'ve| have)? be(?:en)? (?:shorter|simpler|clearer|briefer|better|more \w+|less \w+|friendlier|nicer)\b",
    r"^still (?:more|less|longer|shorter) than\b|^(?:that's |it's )?more than (?:one|a|two|three|\d+)\b",
    r"^not again\b|\byou broke\b|\bstill (?:wrong|broken|failing|not|no|nothing|fails)\b|\b(?:not|isn't) it\b",
)

#: Corrections that say what to do otherwise, whatever they are about.
CORRECT = cues(
    r"\bi (?:\w+ )?(?:asked|requested|told|begged) (?:you )?(?:for|not|to|that|about (?:the|this))\b|\bi (?:\w+ )?(?:told|asked) you\b",
    r"\bi (?:\w+ )?(?:said (?!to\b|that (?:he|she|they)\b)|specified|meant|mean \w|was asking for|was hoping for|was expecting|was looking for|expected|hoped for)\b",
    r"\bi (?:only |just |really |actually |had |originally )?(?:wanted|needed) (?!to (?:know|ask|learn|see|understand|check|say))",
    r"\byou (?:\w+ )?(?:forgot|missed|ignored|skipped|misunderstood|misread|omitted|overlooked|left out|failed to|should've|should have|"
    r"shouldn't|were supposed|are supposed|weren't supposed|keep \w+ing|kept \w+ing)\b|\byou (?:didn't|did not|never|still)\b",
    r"\b(?:next time|from now on|in (?:the )?future|going forward|from here on|henceforth|for next time)\b(?! i (?!want|'d|would|prefer|need))",
    r"\b(?:instead|rather than|as opposed to)\b",
    r"^(?:\w+ly )?(?:don't|do not|never|stop|quit|no more|enough with|enough of) (?!know|think|worry|mind|care|get me|forget to tell)\w+",
    r"\b(?:please|you|just) (?:don't|do not|never|stop|quit)\b(?! know| think| worry| mind)",
    r"\bno need (?:for|to)\b|\byou (?:don't|do not) (?:need|have) to\b",
    r"\bstill (?:\w+ )?(?:throws?|fails?|failing|crash\w*|broken|errors?|getting|gives?|shows?|says|doesn't|isn't|not)\b",
    r"^(?:try again|redo|do it again|do over|once more)\b",
    r"^(?:drop|skip|leave out|cut|omit|ditch|lose|spare me|remove) (?:the|all|any|your|those|these|out)\b",
    r"\bleave (?:\w+ ){1,4}(?:alone|as (?:it|they) (?:is|are|was|were)|untouched|unchanged)\b|\bunless i (?:ask|say|tell|want)\b",
    r"^you (?:also |even |just )?(?:changed|deleted|removed|broke|renamed|edited|touched|overwrote|replaced)\b",
)
#: A statement, and the next clause that denies what was said instead of it: "it's blue", "not green".
ASSERTS = re.compile(
    r"^(?:no |nope |actually )*(?:it|that|this|he|she|they)(?:'s|'re| is| are| was| were)\b(?! not\b)|"
    r"^(?:应该|其实|明明|[这那它他她]|[这那它他她]们|答案|结果|正确答案)*+是"
)
DENIES = re.compile(
    r"^not (?!bad\b|sure\b|really\b|yet\b|at all\b|only\b|just\b|that\b|to\b|because\b)\w+(?: [\w'-]+){0,4}$|^(?:而)?不是"
)
#: The same the other way round: "it's not Paris", "it's Rome".
DENIED = re.compile(
    r"^(?:it|that|this|he|she)(?:'s not|isn't| is not|'s n't| isn't| wasn't| was not) \w+(?: \w+){0,3}$|^不是"
)
REPLACES = re.compile(r"^(?:it|that|this|he|she)(?:'s| is| was)\b|^(?:而|应该)?是")

#: Corrections when the clause names a form, or the answer or its author.
CORRECT_FORM = cues(
    r"\bi (?:really |still |just |do |absolutely )?(?:don't|do not|didn't|did not|never) (?:really |actually |even )?(?:want|like|need|ask|care for|enjoy)\b",
    r"\bi (?:really |absolutely )?(?:hate|dislike|can't stand)\b|\b(?:sick|tired) of\b",
)
REFERS = re.compile(r"\b(?:you|your|it|that|this|these|those|them)\b")

#: Wishes about form alone.
WISH = cues(
    r"\b(?:i|we)(?:'d| would)? (?:\w+ )?(?:prefer|want|like|need|love|appreciate|rather|enjoy|expect)\b|\bi wish\b|\bmy preference\b|\bi'd rather\b",
    r"\b(?:is|are|would|'d)(?: be)? (?:plenty|enough|sufficient|all i (?:need|want)|nice|better|great|good|best|lovely|ideal|helpful|perfect|fine)\b",
    r"\b(?:would|'d) be (?:\w+ )?if you\b",
)

#: Wishes about form; they need a form word in the clause.
PREFER = cues(
    r"\b(?:please|pls|plz|kindly)\b",
    r"\b(?:can|could|would|will|won't|can't) you\b|\bmay i have\b|\bcan i (?:get|have)\b|\b(?:can|could) (?:it|that|this|we)\b",
    r"\b(?:you|it|this|that|answers|replies|responses|they) (?:\w+ )?(?:should|must|need to|needs to|have to|has to|ought to|had better)\b",
    r"\b(?:make sure|be sure|remember to|don't forget|be careful|try to|let's|always|never|only|just)\b",
    r"\b(?:more|less|fewer|shorter|simpler|briefer|clearer|longer|friendlier|warmer|plainer|slower)\b",
    r"^(?:no|without|only|just|in|with|at most|max|maximum|up to|under|one|a|two|three) \w+.*\b(?:only|please|pls|next|max|at most|tops)\b",
)

STYLE_IMPERATIVE = re.compile(rf"^(?:just |always |only |try to |simply |instead )?(?:{STYLE_VERBS})\b")
CONTENT_IMPERATIVE = re.compile(
    rf"^(?:(?:just|next|briefly|quickly|first|in short|simply|also|then|i want you to|i'd like you to|i need you to|i would like you to|"
    rf"i want to|i'd like to|i need to|let me|let's|(?:can|could|would|will) (?:you|i|we)(?: please| kindly| also| just)?)\s+)*"
    rf"(?:{CONTENT_VERBS})\b"
)
SHORT_REQUEST = re.compile(
    r"^(?:a bit |a little |maybe |any chance of |how about |what about )?(?:\w+er|less|more|in|without)\b"
)
ANSWER_OBJECT = re.compile(r"\b(?:it|that|this|them|your (?:answers?|repl(?:y|ies)|responses?|sources?|steps?|own))\b")
NEW_SUBJECT = re.compile(
    r"\b(?:next (?:question|one|topic|up)|another (?:question|one|thing)|different (?:question|topic)|moving on|what about|how about|"
    r"tell me|explain|i(?:'d| would)? (?:also )?(?:want|like|need) to (?:know|ask|learn|understand)|i wonder|i'm (?:curious|wondering|not sure)|"
    r"on to|let's (?:talk|move|go)|question)\b"
)
TASK_OBJECT = re.compile(
    r"\bthis (?:sentence|text|word|paragraph|passage|phrase|article|email|code|function)\b|\bthe following\b"
)
NEGATION = re.compile(
    r"\b(?:not|isn't|wasn't|aren't|weren't|never|no|nothing|hardly|without|don't|doesn't|didn't|far from|none)\W+(?:\w+\W+){0,2}$"
)
PLEASE = re.compile(r"\b(?:please|pls|plz)\b")
CONTRAST = re.compile(r"\b(?:but|however|though|although|except|only|yet|still)\b")
PLEASANTRY = re.compile(
    r"^\W*(?:(?:yes|yep|yeah|no|nope|ok|okay|thanks|thank you|thx|cheers|please|pls|sorry|hi|hello|hey|so much|very much|a lot|again|"
    r"alright|right|sure|great|perfect|nice|good|cool|hmm+|well|that's all|that is all|for now|bye|have a (?:nice|good|great) (?:day|one)|"
    r"lovely|awesome|excellent|exactly|there|sam|my friend|much appreciated|got it|understood|i see)\W*)+$"
)

#: What begins a block of a user message that the agent's harness wrote, or that quotes others; a quoted line is whole.
INJECTED = re.compile(
    r"<(?P<tag>system-reminder|environment_details|environment_context|context|additional_data)\b[^<>]*>|```|^>.*$",
    re.MULTILINE | re.IGNORECASE,
)
ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|etc|vs|mr|mrs|ms|dr|st|no|approx|cf)\.$", re.IGNORECASE)
CLAUSE_BREAK = re.compile(
    r"[,;:]\s+|\s+[-–—]+\s+|[—–(),;\uff0c\uff1b\uff1a\uff08\uff09]|\s+(?=(?:but|however|though|although|except)\b)|"
    r"\s+(?=(?:and|so|then)\s+(?:what|why|how|who|where|when|which|tell|please|can you|could you|next|don't|do not|never|always|keep|use|"
    r"stop|now|explain|describe|in future)\b)"
)
#: Politeness at the end of a hint.
TRAILING = re.compile(
    r"(?:[\s,.!]*\b(?:please|pls|plz|thanks|thank you|thx|ok|okay|cheers)\b)+(?=[.!?]*$)|\s*:\)$", re.IGNORECASE
)
