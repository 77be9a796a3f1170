/// A step that changes a text before it is cut into words.
typealias Normalizer = @Sendable (AlignedText) -> AlignedText

/// The `normalizer` of `tokenizer.json`.
enum Normalizers {
    /// Reads one step, or several. Throws `UnsupportedTokenizer` for a kind that is not known here.
    static func read(_ step: Json) throws -> Normalizer {
        let kind = try step.text("type")
        switch kind {
        case "Sequence": return inOrder(try step.objects("normalizers").map(read))
        case "BertNormalizer": return try bert(step)
        case "NFD", "NFC", "NFKD", "NFKC":
            let form = NormalForm(rawValue: kind)!
            return { form.apply($0) }
        case "Lowercase": return lower()
        case "StripAccents": return without(CharacterTables.set("mark"))
        case "Strip": return strip(left: try step.flag("strip_left"), right: try step.flag("strip_right"))
        case "Replace": return replace(try step.pattern(), try step.text("content"))
        case "Prepend": return prepend(try step.text("prepend"))
        case "Precompiled": return try CharacterMapOfSentencePiece.read(try step.text("precompiled_charsmap"))
        default: throw UnsupportedTokenizer("tokenizer.json has the normalizer \(kind), which is not supported")
        }
    }

    private static func inOrder(_ steps: [Normalizer]) -> Normalizer {
        { text in steps.reduce(text) { $1($0) } }
    }

    private static func bert(_ step: Json) throws -> Normalizer {
        let lowers = try step.flag("lowercase", true)
        var steps: [Normalizer] = []
        if try step.flag("clean_text", true) { steps.append(clean()) }
        if try step.flag("handle_chinese_chars", true) { steps.append(spaceIdeographs()) }
        if try step.flagOrNil("strip_accents") ?? lowers {
            steps.append { NormalForm.nfd.apply($0) }
            steps.append(without(CharacterTables.set("bert_mark")))
        }
        if lowers { steps.append(lower()) }
        return inOrder(steps)
    }

    private static func clean() -> Normalizer {
        let controls = CharacterTables.set("bert_control")
        let spaces = CharacterTables.set("bert_space")
        return { text in
            var built = AlignedText(capacity: text.count)
            for at in 0..<text.count where !controls.contains(text.codes[at]) {
                built.add(spaces.contains(text.codes[at]) ? 0x20 : text.codes[at], text.from[at], text.to[at])
            }
            return built
        }
    }

    private static func spaceIdeographs() -> Normalizer {
        let ideographs = CharacterTables.set("bert_ideograph")
        return { text in
            guard text.codes.contains(where: ideographs.contains) else { return text }
            var built = AlignedText(capacity: text.count + text.count / 2)
            for at in 0..<text.count {
                let alone = ideographs.contains(text.codes[at])
                if alone { built.add(0x20, text.from[at], text.to[at]) }
                built.add(text, at)
                if alone { built.add(0x20, text.from[at], text.to[at]) }
            }
            return built
        }
    }

    private static func lower() -> Normalizer {
        let becomes = CharacterTables.map("lower")
        return { text in
            var built = AlignedText(capacity: text.count)
            for at in 0..<text.count {
                if let lower = becomes[text.codes[at]] {
                    for code in lower { built.add(code, text.from[at], text.to[at]) }
                } else {
                    built.add(text, at)
                }
            }
            return built
        }
    }

    private static func without(_ gone: CharacterSet) -> Normalizer {
        { text in
            guard text.codes.contains(where: gone.contains) else { return text }
            var built = AlignedText(capacity: text.count)
            for at in 0..<text.count where !gone.contains(text.codes[at]) { built.add(text, at) }
            return built
        }
    }

    private static func strip(left: Bool, right: Bool) -> Normalizer {
        let spaces = CharacterTables.set("space")
        return { text in
            var first = 0
            var end = text.count
            if left { while first < end, spaces.contains(text.codes[first]) { first += 1 } }
            if right { while end > first, spaces.contains(text.codes[end - 1]) { end -= 1 } }
            return text.slice(first, end)
        }
    }

    private static func replace(_ pattern: Pattern, _ content: String) -> Normalizer {
        let codes = content.codes
        return { text in
            // Most texts have nothing to replace, and are not copied.
            var built = AlignedText(capacity: 0)
            var kept = 0
            var found = false
            pattern.each(Slice(text.codes, 0, text.count)) { first, end in
                if !found { built = AlignedText(capacity: text.count) }
                found = true
                for at in kept..<first { built.add(text, at) }
                // As in the reference, what is put in belongs to the last character that went out.
                for code in codes { built.add(code, end > 0 ? text.from[end - 1] : 0, end > 0 ? text.to[end - 1] : 0) }
                kept = end
            }
            if !found { return text }
            for at in kept..<text.count { built.add(text, at) }
            return built
        }
    }

    private static func prepend(_ text: String) -> Normalizer {
        let codes = text.codes
        return { whole in
            // Nothing is put before nothing.
            if whole.count == 0 { return whole }
            var built = AlignedText(capacity: whole.count + codes.count)
            for code in codes { built.add(code, whole.from[0], whole.to[0]) }
            for at in 0..<whole.count { built.add(whole, at) }
            return built
        }
    }
}
