package pocketbert.core.tokenizer

import kotlinx.serialization.json.JsonObject
import pocketbert.core.flag
import pocketbert.core.flagOrNull
import pocketbert.core.objects
import pocketbert.core.text

/** A step that changes a text before it is cut into words. */
internal fun interface Normalizer {
    fun apply(text: AlignedText): AlignedText
}

/** The `normalizer` of `tokenizer.json`. */
internal object Normalizers {
    /** Reads one step, or several. Throws [UnsupportedTokenizer] for a kind that is not known here. */
    fun read(step: JsonObject): Normalizer = when (val kind = step.text("type")) {
        "Sequence" -> {
            val steps = step.objects("normalizers").map(::read)
            Normalizer { text -> steps.fold(text) { changed, one -> one.apply(changed) } }
        }
        "BertNormalizer" -> bert(step)
        "NFD", "NFC", "NFKD", "NFKC" -> NormalForm.valueOf(kind).let { form -> Normalizer(form::apply) }
        "Lowercase" -> lower()
        "StripAccents" -> without(CharacterTables.set("mark"))
        "Strip" -> strip(step.flag("strip_left"), step.flag("strip_right"))
        "Replace" -> replace(step.pattern(), step.text("content"))
        "Prepend" -> prepend(step.text("prepend"))
        "Precompiled" -> CharacterMapOfSentencePiece.read(step.text("precompiled_charsmap"))
        else -> throw UnsupportedTokenizer("tokenizer.json has the normalizer $kind, which is not supported")
    }

    private fun bert(step: JsonObject): Normalizer {
        val lower = step.flag("lowercase", true)
        val steps = ArrayList<Normalizer>()
        if (step.flag("clean_text", true)) steps.add(clean())
        if (step.flag("handle_chinese_chars", true)) steps.add(spaceIdeographs())
        if (step.flagOrNull("strip_accents") ?: lower) {
            val marks = without(CharacterTables.set("bert_mark"))
            steps.add(Normalizer { marks.apply(NormalForm.NFD.apply(it)) })
        }
        if (lower) steps.add(lower())
        return Normalizer { text -> steps.fold(text) { changed, one -> one.apply(changed) } }
    }

    private fun clean(): Normalizer {
        val controls = CharacterTables.set("bert_control")
        val spaces = CharacterTables.set("bert_space")
        return Normalizer { text ->
            val built = Spans(text.size)
            for (at in 0 until text.size) {
                val code = text.codes[at]
                if (code !in controls) built.add(if (code in spaces) ' '.code else code, text.from[at], text.to[at])
            }
            built.text()
        }
    }

    private fun spaceIdeographs(): Normalizer {
        val ideographs = CharacterTables.set("bert_ideograph")
        return Normalizer { text ->
            if (text.codes.none { it in ideographs }) return@Normalizer text
            val built = Spans(text.size + text.size / 2)
            for (at in 0 until text.size) {
                val alone = text.codes[at] in ideographs
                if (alone) built.add(' '.code, text.from[at], text.to[at])
                built.add(text, at)
                if (alone) built.add(' '.code, text.from[at], text.to[at])
            }
            built.text()
        }
    }

    private fun lower(): Normalizer {
        val becomes = CharacterTables.map("lower")
        return Normalizer { text ->
            val built = Spans(text.size)
            for (at in 0 until text.size) {
                val lower = becomes[text.codes[at]]
                if (lower == null) built.add(text, at) else for (code in lower) built.add(code, text.from[at], text.to[at])
            }
            built.text()
        }
    }

    private fun without(gone: CharacterSet) = Normalizer { text ->
        if (text.codes.none { it in gone }) return@Normalizer text
        val built = Spans(text.size)
        for (at in 0 until text.size) if (text.codes[at] !in gone) built.add(text, at)
        built.text()
    }

    private fun strip(left: Boolean, right: Boolean): Normalizer {
        val spaces = CharacterTables.set("space")
        return Normalizer { text ->
            var first = 0
            var end = text.size
            if (left) while (first < end && text.codes[first] in spaces) first++
            if (right) while (end > first && text.codes[end - 1] in spaces) end--
            text.slice(first, end)
        }
    }

    private fun replace(pattern: Pattern, content: String): Normalizer {
        val codes = content.codePoints().toArray()
        return Normalizer { text ->
            // Most texts have nothing to replace, and are not copied.
            var built: Spans? = null
            var kept = 0
            pattern.each(Slice(text.codes, 0, text.size)) { first, end ->
                val more = built ?: Spans(text.size).also { built = it }
                for (at in kept until first) more.add(text, at)
                // As in the reference, what is put in belongs to the last character that went out.
                for (code in codes) more.add(code, text.from.getOrElse(end - 1) { 0 }, text.to.getOrElse(end - 1) { 0 })
                kept = end
            }
            built?.let { whole ->
                for (at in kept until text.size) whole.add(text, at)
                whole.text()
            } ?: text
        }
    }

    private fun prepend(text: String): Normalizer {
        val codes = text.codePoints().toArray()
        return Normalizer { whole ->
            // Nothing is put before nothing.
            if (whole.size == 0) {
                whole
            } else {
                val built = Spans(whole.size + codes.size)
                for (code in codes) built.add(code, whole.from[0], whole.to[0])
                for (at in 0 until whole.size) built.add(whole, at)
                built.text()
            }
        }
    }
}
