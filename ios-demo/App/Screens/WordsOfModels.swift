import AppModels
import AppParts
import Foundation

/// What the screens say of their view models.
extension Words {
    // MARK: - Compare

    /// Returns how long the student takes.
    static func headline(_ verdict: CompareModel.Verdict) -> String {
        let (name, time) = (model(verdict.student.name), Formats.roundedMs(verdict.student.medianMs))
        if verdict.student.isRandom { return String(localized: "\(name) takes \(time)") }
        return String(localized: "\(name) answers in \(time)")
    }

    /// Returns how long the other one takes beside it, and whether nobody trained it.
    static func caption(_ verdict: CompareModel.Verdict) -> String {
        let time = beside(verdict)
        if !verdict.other.isRandom { return time }
        let random =
            verdict.student.isRandom
            ? String(localized: "Their weights are random: only their times mean something.")
            : String(localized: "Its weights are random: only its time means something.")
        return "\(time) \(random)"
    }

    static func medians(of runs: Int) -> String {
        String(localized: "Warm medians of \(self.runs(runs)) each, by turns")
    }

    private static let alike = 0.95...1.05

    private static func beside(_ verdict: CompareModel.Verdict) -> String {
        let (name, time) = (model(verdict.other.name), Formats.roundedMs(verdict.other.medianMs))
        if alike.contains(verdict.times) { return String(localized: "\(name) takes \(time): just as long.") }
        if verdict.times < 1 {
            return String(localized: "\(name) takes \(time): \(Formats.wholePercent(verdict.times)) of that time.")
        }
        return String(localized: "\(name) takes \(time): \(Formats.times(verdict.times)) times as long.")
    }

    // MARK: - Self-test

    /// Returns what the line of a model says behind its name.
    static func outcome(_ outcome: SelfTestModel.Outcome) -> String {
        switch outcome {
        case .notTested: String(localized: "not tested")
        case .running: String(localized: "being tested…")
        case .same: String(localized: "same answers")
        case .differs(let how): String(localized: "differs: \(difference(how))")
        case .failed(let sentence): String(localized: "not tested: \(sentence)")
        }
    }

    static func difference(_ difference: SelfTestModel.Difference) -> String {
        switch difference {
        case .olderRuntime(let name, let version, let minimum):
            return String(localized: "\(name) \(version) is older than \(minimum), which the file asks for")
        case .noRows: return String(localized: "there is no text that the file takes")
        case .tokens(let texts): return String(localized: "other tokens for \(texts, specifier: "%lld") texts")
        case .cosine(nil, nil): return String(localized: "a text has no answer to compare")
        case .cosine(nil, let least?):
            return String(localized: "a text has no answer to compare, at least \(Formats.cosine(least)) is asked for")
        case .cosine(let found?, nil): return String(localized: "least similar text \(Formats.cosine(found))")
        case .cosine(let found?, let least?):
            return String(localized: "least similar text \(Formats.cosine(found)), at least \(Formats.cosine(least)) is asked for")
        case .noise(let found, let least):
            return String(localized: "SQNR \(noise(found)), at least \(noise(least)) is asked for")
        case .unconfirmed(let unit): return String(localized: "the runtime does not confirm that the \(unit) ran it")
        }
    }

    static func noise(_ decibels: Double) -> String { Formats.decibels(decibels) ?? String(localized: "no noise") }

    /// Returns what a model showed on a compute unit.
    static func unit(_ test: SelfTestModel.UnitTest) -> String {
        let outcome: SelfTestModel.Outcome =
            switch test.state {
            case .waiting: .notTested
            case .running: .running
            case .done(let report): report.differences.first.map { .differs($0) } ?? .same
            case .failed(let sentence): .failed(sentence)
            }
        if test.known == nil { return "\(test.unit): \(self.outcome(outcome))" }
        return String(localized: "\(test.unit), untried so far: \(self.outcome(outcome))")
    }

    static func verdict(_ verdict: SelfTestModel.Verdict) -> String {
        if verdict.passed == verdict.models {
            return String(localized: "All \(verdict.models, specifier: "%lld") models give the same answers as the reference.")
        }
        let different = verdict.models - verdict.passed
        return String(localized: "Different from the reference: \(different, specifier: "%lld") of \(models(verdict.models)).")
    }

    static func models(_ count: Int) -> String { String(localized: "\(count, specifier: "%lld") models") }

    /// Returns who signed a model.
    static func signature(_ fingerprint: String?) -> String {
        guard let fingerprint else { return String(localized: "Nobody signed it: a debug build takes it all the same.") }
        return String(localized: "Signed with the key \(String(fingerprint.prefix(16)))…")
    }

    /// Returns the runtime that is linked in and the oldest that the file may be run with.
    static func runtime(_ shelved: ShelvedModel) -> String {
        let runtime = shelved.linked.runtime
        let minimum = shelved.model.signature.minimumRuntime
        return String(localized: "\(runtime.name) \(runtime.version); the file asks for \(minimum) or later")
    }

    // MARK: - The set that is searched

    static func problem(_ problem: SearchModel.Problem) -> String {
        switch problem {
        case .tooLarge(let file, let most): String(localized: "\(file) is larger than \(Formats.megabytes(most)).")
        case .notUtf8(let file): String(localized: "\(file) is no text in UTF-8.")
        case .cut(let taken, let all):
            String(localized: "Only the first \(taken, specifier: "%lld") of \(all, specifier: "%lld") lines were taken.")
        case .notKept(let why): String(localized: "The set could not be kept: \(why)")
        case .failed(let sentence): sentence
        }
    }

    static func passages(_ count: Int) -> String { String(localized: "\(count, specifier: "%lld") passages are searched") }

    static func rest(_ rest: Rest) -> String {
        switch rest {
        case .hot: String(localized: "The phone is hot: indexing goes on when it has cooled down.")
        case .lowBattery: String(localized: "The battery is low: indexing goes on when it is charged.")
        }
    }
}
