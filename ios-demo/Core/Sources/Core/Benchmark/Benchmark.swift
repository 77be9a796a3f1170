import Foundation

/// The time that a benchmark may take has passed.
public struct OutOfTime: Error, CustomStringConvertible, Sendable {
    public let description: String
}

/// The phone did not cool down in time.
public struct TooHot: Error, CustomStringConvertible, Sendable {
    public let description: String
}

/// Measures one model on one runtime, as the pipeline measures on the host: full rows of each length in rounds, then real
/// texts as they come, tokenisation apart.
struct Benchmark {
    private struct Opened {
        let tokenizer: Tokenizer
        let runner: any Runner
        let tokenizerMs: Double
        let loadMs: Double
        let firstMs: Double
    }

    private static let coolingPauseS = 1.0
    private static let lengthsShare = 0.8
    /// One WordPiece token in every vocabulary at hand; a row of n of them is a full row of n tokens.
    private static let word = "ocean"
    /// Only the first benchmark of a process sees a cold start.
    private static let measuredBefore = Locked(false)

    let phone: any Phone
    let runtime: any Runtime
    let cancellation: Cancellation
    /// Is called with what is being done, and the share that is done, between two runs.
    let tell: (_ cooling: Bool, _ done: Double, _ doing: String) -> Void

    /// Runs a benchmark and returns its record.
    ///
    /// - Throws: `OutOfTime` where the request's limit passed, `TooHot` where the phone did not cool down within it,
    ///   `Cancelled` where somebody asked for it, `RunnerRefused` where the file cannot be run as it was asked,
    ///   `RunnerFailed` where it gave up.
    func run(_ request: BenchmarkRequest, _ model: Model) throws -> Json {
        // A number of seconds may be larger than any count of nanoseconds.
        let deadline = Double(Ticks.nanoseconds()) + request.timeLimitS * 1e9
        let unit = try model.unit(request.computeUnits)
        try coolDown(request, deadline)
        let started = Self.utc()
        let before = phone.moment()
        let baseline = phone.residentBytes()
        let proportional = phone.proportionalBytes()
        let opened = try open(request, model, unit)
        let lengths: [LengthSamples]
        let texts: TextSamples
        let sustained: Json
        let open: Int64?
        let poolThreads: Int?
        do {
            defer { opened.runner.close() }
            lengths = try timeLengths(request, model, opened, deadline)
            texts = try timeTexts(request, model, opened, deadline)
            sustained = try timeSustained(request, model, opened, deadline)
            open = phone.proportionalBytes()
            poolThreads = opened.runner.poolThreads
        }
        let memory = Json.object([
            ("baseline_bytes", Record.json(baseline)),
            ("peak_bytes", Record.json(phone.peakBytes())),
            ("retained_bytes", Record.json(phone.residentBytes())),
            ("kind", Record.json(phone.memoryKind)),
            ("pss_baseline_bytes", Record.json(proportional)),
            ("pss_open_bytes", Record.json(open)),
            ("pss_retained_bytes", Record.json(phone.proportionalBytes())),
        ])
        return try Record.checked(
            .object([
                ("schema_version", Record.json(1)),
                ("run_id", Record.json(request.runId)),
                ("started_utc", Record.json(started)),
                ("source", Record.json(phone.source)),
                ("device", Record.machine(phone.machine)),
                ("app", .object(phone.versions.sorted { $0.key < $1.key }.map { ($0.key, Record.json($0.value)) })),
                ("model", info(model)),
                ("backend", backend(request, opened.runner, poolThreads)),
                ("timing", timing(request, opened, lengths, texts, sustained)),
                ("memory", memory),
                ("conditions", Record.conditions(before, phone.moment())),
                ("errors", .array([])),
                ("turns", Record.json(1)),
            ]))
    }

    /// Waits for the temperature and the thermal state that were asked for; what the system does not tell is not waited for.
    private func coolDown(_ request: BenchmarkRequest, _ deadline: Double) throws {
        if request.startBelowC == nil, request.startThermal == nil { return }
        let states = phone.thermalStates
        if let wanted = request.startThermal, !states.isEmpty, !states.contains(wanted) {
            throw RunnerRefused("start_thermal is \(wanted), and this system has \(states.joined(separator: ", "))")
        }
        while let (wanted, found) = tooWarm(request, phone.moment()) {
            tell(true, 0, "waiting for \(wanted), at \(found)")
            if Double(Ticks.nanoseconds()) > deadline {
                throw TooHot(description: "it did not cool down to \(wanted) in \(request.timeLimitS) s; it is at \(found)")
            }
            try cancellation.check()
            Thread.sleep(forTimeInterval: Self.coolingPauseS)
        }
    }

    /// Returns what was asked for and what is, where the phone is still too warm.
    private func tooWarm(_ request: BenchmarkRequest, _ now: Moment) -> (wanted: String, found: String)? {
        if let wanted = request.startBelowC, let found = now.temperatureC, !(found < wanted) { return ("\(wanted) °C", "\(found) °C") }
        let states = phone.thermalStates
        if let wanted = request.startThermal, let found = now.thermal, let most = states.firstIndex(of: wanted),
            (states.firstIndex(of: found) ?? states.count) > most
        {
            return ("the thermal state \(wanted)", found)
        }
        return nil
    }

    private func open(_ request: BenchmarkRequest, _ model: Model, _ unit: String) throws -> Opened {
        tell(false, 0, "opening \(model.entry.folder)")
        let (tokenizer, tokenizerMs) = try Self.timed { try model.tokenizer() }
        let options = RunnerOptions(threads: request.threads, computeUnits: unit, isMeasured: true)
        let (runner, loadMs) = try Self.timed { try runtime.open(model, options) }
        do {
            let first = try model.signature.pad(try tokenizer.encode(request.texts[0], maxLength: model.signature.maxLength))
            try runner.prepare(first)
            let (_, firstMs) = try Self.timed { try runner.run(first) }
            return Opened(tokenizer: tokenizer, runner: runner, tokenizerMs: tokenizerMs, loadMs: loadMs, firstMs: firstMs)
        } catch {
            runner.close()
            throw error
        }
    }

    private func timeLengths(
        _ request: BenchmarkRequest, _ model: Model, _ opened: Opened, _ deadline: Double
    ) throws -> [LengthSamples] {
        let rows = try request.lengths.map { try fullRow(model, opened, $0) }
        var samples = zip(request.lengths, rows).map { LengthSamples(length: $0, ranAt: $1.length) }
        for round in 0..<request.rounds {
            for (place, row) in rows.enumerated() {
                try check(deadline)
                let done = Self.lengthsShare * Double(round) / Double(request.rounds)
                let doing = "length \(samples[place].length), round \(round + 1) of \(request.rounds)"
                tell(false, done, doing)
                try opened.runner.prepare(row)
                _ = try opened.runner.run(row)
                var spent = 0.0
                var runs = 0
                while runs < request.runsPerRound || spent < request.roundMs {
                    try check(deadline)
                    tell(false, done, doing)
                    let (wall, cpu) = try time(opened.runner, row)
                    samples[place].wall.append(wall)
                    samples[place].cpu.append(cpu)
                    spent += wall
                    runs += 1
                }
            }
        }
        return samples
    }

    /// Passes over all texts; the first is for warming up and is not kept.
    private func timeTexts(
        _ request: BenchmarkRequest, _ model: Model, _ opened: Opened, _ deadline: Double
    ) throws -> TextSamples {
        var kept = TextSamples(passes: request.textPasses)
        for pass in 0...request.textPasses {
            for (number, text) in request.texts.enumerated() {
                try check(deadline)
                let share = (Double(pass) + Double(number) / Double(request.texts.count)) / Double(request.textPasses + 1)
                let done = Self.lengthsShare + (1 - Self.lengthsShare) * share
                tell(false, done, "texts, pass \(pass) of \(request.textPasses)")
                let (row, tokenizeMs) = try Self.timed {
                    try model.signature.pad(try opened.tokenizer.encode(text, maxLength: model.signature.maxLength))
                }
                let (wall, cpu) = try time(opened.runner, row)
                if pass == 0 { continue }
                kept.tokenize.append(tokenizeMs)
                kept.wall.append(wall)
                kept.cpu.append(cpu)
                if pass == 1 {
                    kept.tokens.append((row.inputs["attention_mask"] ?? []).reduce(0) { $0 + Int($1) })
                    kept.ranAt.append(row.length)
                }
            }
        }
        return kept
    }

    /// One inference after another at the longest length, in parts; the file is warm already.
    private func timeSustained(_ request: BenchmarkRequest, _ model: Model, _ opened: Opened, _ deadline: Double) throws -> Json {
        guard request.sustainedS > 0, let length = request.lengths.max() else { return .null }
        let row = try fullRow(model, opened, length)
        var parts: [SustainedPart] = []
        let began = Ticks.nanoseconds()
        var begins = 0.0
        while begins < request.sustainedS {
            let until = min(begins + request.sustainedPartS, request.sustainedS)
            var wall: [Double] = []
            repeat {
                try check(deadline)
                tell(false, begins / request.sustainedS, "sustained, \(Int(begins)) of \(Int(request.sustainedS)) s")
                try opened.runner.prepare(row)
                wall.append(try Self.timed { try opened.runner.run(row) }.1)
            } while Self.seconds(began) < until
            let ends = Self.seconds(began)
            parts.append(SustainedPart(beginsS: begins, seconds: ends - begins, wall: wall, after: phone.moment()))
            begins = ends
        }
        return Record.sustained(LengthSamples(length: length, ranAt: row.length), parts)
    }

    private func fullRow(_ model: Model, _ opened: Opened, _ length: Int) throws -> PaddedRow {
        let words = [String](repeating: Self.word, count: length).joined(separator: " ")
        return try model.signature.pad(try opened.tokenizer.encode(words, maxLength: length))
    }

    private func check(_ deadline: Double) throws {
        try cancellation.check()
        if Double(Ticks.nanoseconds()) > deadline { throw OutOfTime(description: "the time limit passed before all was measured") }
    }

    private func time(_ runner: any Runner, _ row: PaddedRow) throws -> (wall: Double, cpu: Double?) {
        try runner.prepare(row)
        let cpuBefore = phone.cpuMs()
        let (_, ms) = try Self.timed { try runner.run(row) }
        guard let cpuBefore, let cpuAfter = phone.cpuMs() else { return (ms, nil) }
        return (ms, cpuAfter - cpuBefore)
    }

    private func info(_ model: Model) -> Json {
        let signature = model.signature
        let lengths = signature.functions.allSatisfy(\.fixed) ? signature.functions.map(\.maxLength) : nil
        return .object([
            ("id", Record.json("\(signature.backend)-\(signature.scheme)")),
            ("file", Record.json(signature.file)),
            ("sha256", Record.json(model.entry.digest)),
            ("file_sha256", Record.json(model.fileDigest)),
            ("bytes", Record.json(model.entry.bytes)),
            ("scheme", Record.json(signature.scheme)),
            ("lengths", Record.list(lengths)),
        ])
    }

    private func backend(_ request: BenchmarkRequest, _ runner: any Runner, _ poolThreads: Int?) -> Json {
        .object([
            ("runtime", Record.json(runtime.name)),
            ("version", Record.json(runtime.version)),
            ("delegate", Record.json(runner.delegate)),
            ("compute_units", Record.json(request.computeUnits)),
            ("threads", Record.json(request.threads)),
            ("ops_delegated", Record.json(runner.operations?.delegated)),
            ("ops_total", Record.json(runner.operations?.all)),
            ("ops_by_unit", Record.counts(runner.operationsByUnit)),
            ("share_by_unit", Record.shares(runner.shareByUnit)),
            ("pool_threads", Record.json(poolThreads)),
        ])
    }

    private func timing(
        _ request: BenchmarkRequest, _ opened: Opened, _ lengths: [LengthSamples], _ texts: TextSamples, _ sustained: Json
    ) -> Json {
        let isCold = Self.measuredBefore.withLock { before in
            defer { before = true }
            return !before
        }
        let cold = Json.object([
            ("process_to_ready_ms", Record.json(phone.processToReadyMs)),
            ("tokenizer_ms", Record.json(opened.tokenizerMs)),
            ("load_ms", Record.json(opened.loadMs)),
            ("first_inference_ms", Record.json(opened.firstMs)),
        ])
        return .object([
            ("clock", Record.json("DispatchTime (wall), the process's processor time (cpu, all threads)")),
            ("load_ms", Record.json(opened.loadMs)),
            ("first_inference_ms", Record.json(opened.firstMs)),
            ("cold_start", isCold ? cold : .null),
            ("warmup_runs", Record.json(request.rounds)),
            ("lengths", .array(lengths.map(Record.length))),
            ("texts", Record.texts(texts)),
            ("texts_sha256", Record.json(Sha256.hex(of: request.texts.flatMap { "\($0)\n".utf8 }))),
            ("sustained", sustained),
        ])
    }

    private static func utc() -> String {
        var now = time_t(Date().timeIntervalSince1970)
        var parts = tm()
        gmtime_r(&now, &parts)
        func two(_ number: Int32) -> String { number < 10 ? "0\(number)" : "\(number)" }
        let day = "\(parts.tm_year + 1900)-\(two(parts.tm_mon + 1))-\(two(parts.tm_mday))"
        return "\(day)T\(two(parts.tm_hour)):\(two(parts.tm_min)):\(two(parts.tm_sec))+00:00"
    }

    private static func seconds(_ began: UInt64) -> Double { Ticks.milliseconds(began, Ticks.nanoseconds()) / 1_000 }

    private static func timed<Value>(_ work: () throws -> Value) rethrows -> (Value, Double) {
        let began = Ticks.nanoseconds()
        let result = try work()
        return (result, Ticks.milliseconds(began, Ticks.nanoseconds()))
    }
}
