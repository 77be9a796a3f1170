plugins {
    alias(libs.plugins.kotlin.jvm)
}

kotlin {
    jvmToolchain(17)
}

sourceSets {
    // They are Maven's, see below.
    test { kotlin.setSrcDirs(emptyList<String>()) }
}

// Its tests need the vectors and the students of `make core-check`, and run there.
dependencies {
    api(libs.serialization.json)
}
