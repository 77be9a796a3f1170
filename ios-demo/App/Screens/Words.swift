import AppParts
import Core
import Foundation

/// What both apps say of models, answers and runs. Numbers and names come from the models; the words are in the catalog.
enum Words {
    /// Returns a scheme as a person calls it.
    static func scheme(_ scheme: String) -> String {
        switch scheme {
        case "int8_dynamic": String(localized: "int8")
        case "int8_static": String(localized: "int8 static")
        case "int8_weight_only": String(localized: "int8 weights")
        case "int4_weight_only": String(localized: "int4 weights")
        case "palettize_4bit": String(localized: "4-bit palette")
        default: scheme.replacingOccurrences(of: "_", with: " ")
        }
    }

    /// Returns a model's name, such as `minilm int8 · LiteRT`.
    static func model(_ name: ModelName) -> String {
        let own = [name.recipe, name.scheme.map(scheme)].compactMap { $0 }.joined(separator: " ")
        return [own, name.runtime].compactMap { $0 }.joined(separator: " · ")
    }

    /// Returns what tells a model from the other files of its recipe.
    static func detail(_ model: ShelvedModel) -> String {
        "\(model.linked.runtime.name) · \(scheme(model.model.signature.scheme)) · \(Formats.megabytes(model.model.entry.bytes))"
    }

    /// Returns a label, or the kind of an entity.
    static func label(_ label: String) -> String {
        switch LabelName(label) {
        case .number(let number): String(localized: "class \(number)")
        case .words(let words): words
        }
    }

    /// Returns the name of one of several values.
    static func value(_ name: String) -> String {
        switch LabelName(name) {
        case .number(let number): String(localized: "value \(number)")
        case .words(let words): words
        }
    }

    /// Returns a label's probability, and whether the text has it where each label is decided by itself.
    static func share(_ share: Share) -> String {
        let percent = Formats.percent(share.share)
        return share.isGiven == true ? String(localized: "given, \(percent)") : percent
    }

    /// Returns a prompt's name; an empty one is none.
    static func prompt(_ name: String) -> String { name.isEmpty ? String(localized: "No prompt") : name }

    /// Says that a model has prompts, and was asked without one.
    static func unused(_ prompts: [String]) -> String {
        let names = prompts.joined(separator: ", ")
        return String(localized: "The text was embedded without a prompt. This model has: \(names).")
    }

    static func missing(_ missing: Question.Missing) -> String {
        switch missing {
        case .text: String(localized: "Write a text.")
        case .twoTexts: String(localized: "Write two texts to compare.")
        case .questionAndPassage: String(localized: "Write a question and a passage.")
        case .label: String(localized: "Write a label.")
        case .twoLabels: String(localized: "Write two labels or more, with commas between.")
        case .template: String(localized: "Write {} once in the template, where a label is put.")
        }
    }

    static func runs(_ count: Int) -> String { String(localized: "\(count, specifier: "%lld") runs") }

    static func tokens(_ count: Int) -> String { String(localized: "\(count, specifier: "%lld") tokens") }

    static func threads(_ count: Int) -> String { String(localized: "\(count, specifier: "%lld") threads") }

    /// Returns how fast full rows of a length are.
    static func length(_ length: RunRecord.Length) -> String {
        let (runs, tokens) = (runs(length.latencies.n), tokens(length.length))
        guard let median = length.latencies.p50 else { return String(localized: "\(runs) at \(tokens)") }
        return String(localized: "median \(Formats.ms(median)) of \(runs) at \(tokens)")
    }

    /// Returns what a record measured, such as `minilm int8 · LiteRT`.
    static func title(_ record: RunRecord) -> String { record.model.map(model) ?? record.run }

    /// Returns when it was measured, in the form of the phone's region, on which units, and with how many threads.
    static func circumstances(_ record: RunRecord) -> String {
        let date = record.started.formatted(date: .abbreviated, time: .shortened)
        return ([date] + record.units + [threads(record.threads)]).joined(separator: " · ")
    }

    /// Returns what ran it, such as `LiteRT 2.1.5 · XNNPACK`.
    static func runtime(_ record: RunRecord) -> String {
        ["\(record.runtime) \(record.version)", record.delegate].compactMap { $0 }.joined(separator: " · ")
    }

    /// Returns what a run does, or how it ended.
    static func progress(_ progress: RunProgress) -> String {
        let why = reason(progress.message)
        return switch progress.state {
        case .cooling: String(localized: "Waiting for the phone to cool down…")
        case .running: String(localized: "Measuring…")
        case .finished: String(localized: "The run finished, and wrote its record.")
        case .refused: String(localized: "The run was refused: \(why).")
        case .failed: String(localized: "The run failed: \(why).")
        case .cancelled: String(localized: "The run was stopped.")
        case .outOfTime: String(localized: "The run had too little time: \(why).")
        case .tooHot: String(localized: "The phone is too hot: \(why).")
        }
    }

    /// Returns a message of a run without the full stop that some have.
    private static func reason(_ message: String?) -> String {
        guard let message, !message.isEmpty else { return String(localized: "no reason was given") }
        return message.hasSuffix(".") ? String(message.dropLast()) : message
    }

    /// Returns what computed, such as `LiteRT on the CPU`; the units are named where the runtime confirms them.
    static func place(_ runtime: String, _ units: [String]) -> String {
        switch units.count {
        case 0: runtime
        case 1: String(localized: "\(runtime) on the \(units[0])")
        case 2: String(localized: "\(runtime) on the \(units[0]) and the \(units[1])")
        default: String(localized: "\(runtime) on the \(units[0]), the \(units[1]) and the \(units[2])")
        }
    }

    /// Returns how long an answer took, and where.
    ///
    /// - Parameters:
    ///   - reply: of the first run.
    ///   - warmMs: the median of the runs after it; nil while it is not known.
    ///   - model: that answered.
    static func caption(_ reply: Reply, warmMs: Double?, _ model: ShelvedModel) -> String {
        let (first, tokens) = (Formats.roundedMs(reply.inferenceMs), tokens(reply.tokens))
        let name = "\(model.name) \(scheme(model.model.signature.scheme)), \(place(model.linked.runtime.name, reply.units))"
        guard let warmMs else { return String(localized: "first run \(first) · \(tokens) of \(reply.length, specifier: "%lld") · \(name)") }
        let warm = Formats.roundedMs(warmMs)
        return String(localized: "\(warm) warm median · first run \(first) · \(tokens) of \(reply.length, specifier: "%lld") · \(name)")
    }

    /// Returns something found in a text as it is read aloud: what it is, and how sure the model is of it.
    static func found(_ text: String, _ found: Found) -> String {
        guard let kind = found.kind else { return text }
        let (name, percent) = (label(kind), Formats.wholePercent(found.score))
        if Confidence(found.score) == .unsure { return String(localized: "\(text), \(name), unsure, \(percent)") }
        return String(localized: "\(text), \(name), \(percent)")
    }

    /// Returns an answer as it is read aloud, without what a screen shows beside it.
    static func answer(_ answer: Answer, _ question: Question, nearest: String? = nil) -> String {
        switch answer {
        case .labels(let shares):
            if shares.given.isEmpty { return String(localized: "No label reaches its threshold.") }
            return shares.given.map { "\(label($0.label)), \(Formats.percent($0.share))" }.joined(separator: "; ")
        case .values(let values): return values.map { "\(value($0.name)), \(Formats.value($0.value))" }.joined(separator: "; ")
        case .value(let value): return Formats.value(value)
        case .span(let span):
            guard let span, let text = text(of: span, in: question.second ?? "") else {
                return String(localized: "There is no answer in the passage.")
            }
            return text
        case .entities(let all):
            if all.isEmpty { return String(localized: "It found no entity.") }
            return all.compactMap { one in text(of: one, in: question.first).map { found($0, one) } }.joined(separator: "; ")
        case .embedding: return nearest ?? ""
        case .hidden:
            return String(localized: "This model has random weights. Its latency is that of a trained one, and its answer means nothing.")
        }
    }

    /// Says that a text is longer than a model takes.
    static func cut(at limit: Int) -> String { String(localized: "The text has more than \(tokens(limit)): its end was not read.") }

    /// Returns the part of a text that was found, or nil where it lies outside.
    static func text(of found: Found, in text: String) -> String? {
        Segment.split(text, [found]).first { $0.found != nil }?.text
    }
}
