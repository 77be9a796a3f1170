package pocketbert.core.tokenizer

/** Unicode's four normal forms, by the reference's own tables. */
internal enum class NormalForm(private val compatible: Boolean, private val composed: Boolean) {
    NFD(false, false),
    NFC(false, true),
    NFKD(true, false),
    NFKC(true, true),
    ;

    fun apply(text: AlignedText): AlignedText {
        if (text.codes.all { it < FIRST_THAT_CHANGES }) return text
        val parts = decompose(text)
        order(parts)
        return if (composed) compose(parts) else parts
    }

    private fun decompose(text: AlignedText): AlignedText {
        val canonical = CharacterTables.map("nfd")
        val more = if (compatible) CharacterTables.map("nfkd") else null
        val built = Spans(text.size + text.size / 2)
        for (at in 0 until text.size) {
            val code = text.codes[at]
            val syllable = code - SYLLABLES
            if (syllable in 0 until SYLLABLE_COUNT) {
                built.add(LEADING + syllable / (VOWEL_COUNT * TRAILING_COUNT), text.from[at], text.to[at])
                built.add(VOWELS + syllable / TRAILING_COUNT % VOWEL_COUNT, text.from[at], text.to[at])
                val trailing = syllable % TRAILING_COUNT
                if (trailing > 0) built.add(TRAILING + trailing, text.from[at], text.to[at])
                continue
            }
            val becomes = more?.get(code) ?: canonical[code]
            if (becomes == null) built.add(text, at) else for (one in becomes) built.add(one, text.from[at], text.to[at])
        }
        return built.text()
    }

    /** Puts marks behind a letter into their order; equal ones stay as they are. */
    private fun order(text: AlignedText) {
        for (at in 1 until text.size) {
            val rank = Ranks.of(text.codes[at])
            if (rank == 0) continue
            var place = at
            while (place > 0 && Ranks.of(text.codes[place - 1]) > rank) place--
            if (place < at) {
                for (array in arrayOf(text.codes, text.from, text.to)) {
                    val moved = array[at]
                    array.copyInto(array, place + 1, place, at)
                    array[place] = moved
                }
            }
        }
    }

    private fun compose(text: AlignedText): AlignedText {
        val built = Spans(text.size)
        val codes = text.codes.copyOf()
        val gone = BooleanArray(codes.size)
        var starter = -1
        var before = 0
        for (at in codes.indices) {
            val rank = Ranks.of(codes[at])
            // What lies between the two has all been composed, or is a mark of a lower rank.
            val free = starter >= 0 && (before == 0 || before < rank)
            val composed = if (free) pair(codes[starter], codes[at]) else -1
            if (composed >= 0) {
                // It keeps the first one's place, as in the reference.
                codes[starter] = composed
                gone[at] = true
                continue
            }
            if (rank == 0) {
                starter = at
                before = 0
            } else {
                before = rank
            }
        }
        for (at in codes.indices) if (!gone[at]) built.add(codes[at], text.from[at], text.to[at])
        return built.text()
    }

    private fun pair(first: Int, second: Int): Int {
        val leading = first - LEADING
        val vowel = second - VOWELS
        if (leading in 0 until LEADING_COUNT && vowel in 0 until VOWEL_COUNT) {
            return SYLLABLES + (leading * VOWEL_COUNT + vowel) * TRAILING_COUNT
        }
        val syllable = first - SYLLABLES
        val trailing = second - TRAILING
        if (syllable in 0 until SYLLABLE_COUNT && syllable % TRAILING_COUNT == 0 && trailing in 1 until TRAILING_COUNT) {
            return first + trailing
        }
        return Pairs.composed[(first.toLong() shl 32) or second.toLong()] ?: -1
    }

    private companion object {
        const val FIRST_THAT_CHANGES = 0xA0
        const val SYLLABLES = 0xAC00
        const val LEADING = 0x1100
        const val VOWELS = 0x1161
        const val TRAILING = 0x11A7
        const val LEADING_COUNT = 19
        const val VOWEL_COUNT = 21
        const val TRAILING_COUNT = 28
        const val SYLLABLE_COUNT = LEADING_COUNT * VOWEL_COUNT * TRAILING_COUNT
    }
}

/** The order of marks: 0 for what is none. */
private object Ranks {
    private val ranks = HashMap<Int, Int>()

    init {
        var rank = 1
        while (true) {
            val members = CharacterTables.find("order_$rank") ?: break
            members.each { first, last -> for (code in first..last) ranks[code] = rank }
            rank++
        }
    }

    fun of(code: Int) = if (code < LOWEST) 0 else ranks[code] ?: 0

    private const val LOWEST = 0x300
}

private object Pairs {
    val composed = HashMap<Long, Int>()

    init {
        CharacterTables.map("nfc").each { to, pair -> composed[(pair[0].toLong() shl 32) or pair[1].toLong()] = to }
    }
}
