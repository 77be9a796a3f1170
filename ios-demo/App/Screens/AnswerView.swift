import AppModels
import AppParts
import Core
import SwiftUI

/// An answer in the form of its task: what the model says is the largest on the screen, and the rest is below it.
struct AnswerView: View {
    let answer: Answer
    let question: Question
    var neighbours: [SearchModel.Neighbour] = []

    var body: some View {
        switch answer {
        case .labels(let shares): LabelsView(given: shares.given, others: shares.filter { !shares.given.contains($0) })
        case .value(let value): Text(verbatim: Formats.value(value)).font(.largeTitle.weight(.semibold)).monospacedDigit()
        case .values(let values): ForEach(values.indices, id: \.self) { ValueRow(value: values[$0]) }
        case .span(let span): SpanView(span: span, passage: question.second ?? "")
        case .entities(let found): Entities(text: question.first, found: found)
        case .embedding: ForEach(neighbours.indices, id: \.self) { NeighbourRow(neighbour: neighbours[$0], isFirst: $0 == 0) }
        case .hidden: Notice(Words.answer(answer, question), systemImage: "dice")
        }
    }
}

/// What is given stands first and largest; the other labels stand below it.
private struct LabelsView: View {
    let given: [Share]
    let others: [Share]

    var body: some View {
        if given.isEmpty { Text("No label reaches its threshold.").foregroundStyle(.secondary) }
        ForEach(given.indices, id: \.self) { ShareRow(share: given[$0], isFirst: true) }
        ForEach(others.indices, id: \.self) { ShareRow(share: others[$0], isFirst: false) }
    }
}

/// One number of several, with its name.
private struct ValueRow: View {
    let value: NamedValue

    var body: some View {
        HStack(alignment: .firstTextBaseline) {
            Text(verbatim: Words.value(value.name)).font(.headline)
            Spacer(minLength: 12)
            Text(verbatim: Formats.value(value.value)).font(.largeTitle.weight(.semibold)).monospacedDigit()
        }
        .accessibilityElement(children: .combine)
    }
}

/// A label with a bar as long as its probability.
private struct ShareRow: View {
    let share: Share
    let isFirst: Bool

    var body: some View {
        VStack(alignment: .leading, spacing: 4) {
            HStack(alignment: .firstTextBaseline) {
                Text(verbatim: Words.label(share.label)).font(isFirst ? .largeTitle.weight(.semibold) : .headline)
                Spacer(minLength: 12)
                Text(verbatim: Words.share(share)).font(isFirst ? .title2 : .body).monospacedDigit()
            }
            ProgressView(value: min(max(share.share, 0), 1)).tint(Theme.student).accessibilityHidden(true)
        }
        .accessibilityElement(children: .combine)
    }
}

/// The answer to a question, and the passage in which it stands.
private struct SpanView: View {
    let span: Found?
    let passage: String

    var body: some View {
        if let span, let text = Words.text(of: span, in: passage) {
            Text(verbatim: text).font(.largeTitle.weight(.semibold)).textSelection(.enabled)
        } else {
            Text("There is no answer in the passage.").foregroundStyle(.secondary)
        }
        Text(Marks.text(passage, span.map { [$0] } ?? [])).textSelection(.enabled)
    }
}

/// What was found in a text, and the text in which it is marked: as strongly as the model is sure of it.
private struct Entities: View {
    let text: String
    let found: [Found]

    var body: some View {
        if found.isEmpty { Text("It found no entity.").foregroundStyle(.secondary) }
        ForEach(found.indices, id: \.self) { EntityRow(text: Words.text(of: found[$0], in: text) ?? "", found: found[$0]) }
        // Its marks are in the rows above.
        Text(Marks.text(text, found)).textSelection(.enabled)
    }
}

private struct EntityRow: View {
    let text: String
    let found: Found

    var body: some View {
        VStack(alignment: .leading, spacing: 2) {
            Text(verbatim: text)
                .font(.title.weight(.semibold))
                .padding(.horizontal, 8)
                .background(Marks.fill(found), in: RoundedRectangle(cornerRadius: 8))
                .overlay {
                    if Confidence(found.score) == .unsure {
                        RoundedRectangle(cornerRadius: 8)
                            .strokeBorder(Theme.warning, style: StrokeStyle(lineWidth: 1.5, dash: [4, 3]))
                    }
                }
            Text(verbatim: detail).font(.callout).foregroundStyle(.secondary)
        }
        .accessibilityElement(children: .ignore)
        .accessibilityLabel(Text(verbatim: Words.found(text, found)))
    }

    private var detail: String {
        let (kind, percent) = (Words.label(found.kind ?? ""), Formats.wholePercent(found.score))
        if Confidence(found.score) == .unsure { return String(localized: "\(kind), unsure, \(percent)") }
        return "\(kind), \(percent)"
    }
}

/// How what was found is marked: filled where the model is sure, lighter where it is likely, dashed where it is unsure.
private enum Marks {
    static func fill(_ found: Found) -> Color {
        // An answer has no probability: its score is a sum of logits.
        if found.kind == nil { return Theme.found }
        return switch Confidence(found.score) {
        case .sure: Theme.found
        case .likely: Theme.found.opacity(0.4)
        case .unsure: Theme.found.opacity(0)
        }
    }

    static func text(_ text: String, _ found: [Found]) -> AttributedString {
        Segment.split(text, found).reduce(into: AttributedString()) { whole, segment in
            var piece = AttributedString(segment.text)
            if let found = segment.found {
                piece.backgroundColor = fill(found)
                piece.font = .body.weight(.semibold)
                if found.kind != nil, Confidence(found.score) == .unsure { piece.underlineStyle = Text.LineStyle(pattern: .dash) }
            }
            whole += piece
        }
    }
}

private struct NeighbourRow: View {
    let neighbour: SearchModel.Neighbour
    let isFirst: Bool

    var body: some View {
        HStack(alignment: .firstTextBaseline) {
            Text(verbatim: neighbour.text).font(isFirst ? .title.weight(.semibold) : .body)
            Spacer(minLength: 12)
            Text(verbatim: Formats.value(neighbour.cosine)).font(.callout).monospacedDigit().foregroundStyle(.secondary)
        }
        .accessibilityElement(children: .combine)
    }
}
